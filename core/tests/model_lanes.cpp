// Lanes on the model machine: a row that is trusted is whole, and is the row it says it is.
#include "../lanes.hpp"
#include "scenario.hpp"

namespace fw::model {
namespace {

enum : Role { kHead = 1, kEpoch, kMeta, kPayload };

const std::vector<Field> fields{{0, 16, true}, {2, 5, false}};  // an observation, and an action that fills no whole word

struct World {
  u64 start;
  LaneShape shape;
  Lanes<ModelPolicy> lanes;

  explicit World(u64 seed) : start(near_a_limit(seed)), shape{1, 2 + machine.below(2), 3}, lanes(words.data(), shape) {
    lanes.format(start);
    const Word* lane = words.data() + 8;  // behind the counter of rows; then one line of head, epoch, base
    machine.name(kHead, lane);
    machine.name(kEpoch, lane + 1);
    for (std::size_t slot = 0; slot < shape.slots; ++slot) {
      machine.name(kMeta, lanes.meta_at(0, slot), Lanes<ModelPolicy>::meta_words);
      machine.name(kPayload, lanes.payload_at(0, slot), int(shape.payload_words));
    }
  }

  // All of a row follows from its number and the policy version it carries.
  bool append(u64 epoch, u64 row, u64 version) {
    const u64 number = row ^ version << 40;
    const u64 observation[2] = {content(number, 0), content(number, 1)}, action = content(number, 2);
    const u32 flags = row % 3 == 0 ? u32(kTruncated) : 0;
    const char* sources[] = {reinterpret_cast<const char*>(observation),
                             flags ? nullptr : reinterpret_cast<const char*>(&action)};
    return lanes.append(0, epoch, {float(u32(row)), flags, content(number, 3)}, version, -1, fields, sources);
  }

  void write(u64 epoch, u64 count, u64 version) {
    for (u64 i = 0; i < count; ++i) {
      machine.expect(append(epoch, lanes.head(0), version), "the lane's own writer was refused");
      lanes.announce(1);
    }
  }

  // As a sampler reads: head, copy, head again, and trust the row only if it is still intact.
  void read(int times) {
    u64 seen = start;
    while (times--) {
      const u64 head = lanes.head(0), kept = std::min<u64>(head - start, shape.slots - 1);
      machine.expect(i64(head - seen) >= 0, "the head went back from %lx to %lx", seen, head);
      seen = head;
      if (!kept) continue;
      const u64 row = head - 1 - machine.below(kept);
      const std::size_t slot = lanes.slot_of(0, row);
      u64 observation[2], action = 0;
      const RowHead found = lanes.row_head(0, slot);
      const u64 version = lanes.version(0, slot);
      lanes.copy_field(observation, 0, slot, fields[0]);
      lanes.copy_field(&action, 0, slot, fields[1]);
      const Plant& plant = machine.plant;
      const bool trusted = plant.reads_unchecked || lanes.intact(row + plant.trusts_one_more, lanes.head(0));
      happened(!trusted);
      if (trusted) check(row, version, found, observation, action);
    }
  }

  void check(u64 row, u64 version, RowHead found, const u64* observation, u64 action) {
    const u64 number = row ^ version << 40, five_bytes = (u64(1) << 40) - 1;
    machine.expect(found.reward == float(u32(row)), "row %lx: reward of another row", row);
    machine.expect(found.flags == (row % 3 == 0 ? u32(kTruncated) : 0), "row %lx: flags of another row", row);
    machine.expect(found.step == content(number, 3), "row %lx: step of another row", row);
    for (u64 i = 0; i < 2; ++i) machine.expect(observation[i] == content(number, i), "row %lx: torn observation", row);
    if (!found.flags) machine.expect(action == (content(number, 2) & five_bytes), "row %lx: torn action", row);
  }
};

const Scenario readers{"lanes/writer-and-readers", "rows trusted", "rows overwritten meanwhile", [](u64 seed) {
  World world(seed);
  const u64 epoch = world.lanes.open(0);
  world.write(epoch, 1, 1);
  machine.spawn([&] { world.write(epoch, 4, 1); });
  machine.spawn([&] { world.read(4); });
  machine.spawn([&] { world.read(4); });
  if (machine.run()) machine.expect(world.lanes.head(0) == world.start + 5, "rows were lost");
}};

// Whoever waited for rows finds them, also while the writer goes on.
const Scenario waiter{"lanes/waiting-reader", "rows trusted", "rows overwritten meanwhile", [](u64 seed) {
  World world(seed);
  const u64 epoch = world.lanes.open(0);
  machine.spawn([&] { world.write(epoch, 5, 1); });
  machine.spawn([&] {
    for (u64 rows = 1; rows <= 3; ++rows) {
      machine.expect(world.lanes.rows().wait(rows, no_deadline, never), "wait() gave up without a deadline");
      const u64 there = world.lanes.head(0) - world.start;
      machine.expect(there >= rows, "waited for %lu rows, found %lu", rows, there);
      world.read(1);
    }
  });
  machine.run();
}};

// A writer is killed anywhere, reaped and replaced. Another that was stopped all the while comes back with the old epoch.
const Scenario replaced{"lanes/writer-replaced", "rows trusted", "rows overwritten meanwhile", [](u64 seed) {
  World world(seed);
  const u64 old_epoch = world.lanes.open(0);
  bool is_replaced = false;  // how the stopped one comes to run again is no matter of shared memory
  const int victim = machine.spawn([&] { world.write(old_epoch, 3, 1); });
  const int successor = machine.spawn([&] {
    for (u64 delay = machine.below(40); delay--;) machine.step();
    machine.kill(victim);
    machine.learn_from(victim);
    const u64 epoch = world.lanes.open(0);
    is_replaced = true;
    world.write(epoch, 3, 2);
  });
  machine.spawn([&] {
    machine.expect(world.lanes.epoch(0) >= old_epoch, "the epoch went back");
    while (!is_replaced) machine.step();
    machine.learn_from(successor);
    machine.expect(!world.append(old_epoch, world.lanes.head(0), 3), "a writer with an old epoch was let in");
  });
  machine.spawn([&] { world.read(4); });
  if (!machine.run()) return;
  const u64 rows = world.lanes.head(0) - world.start;
  machine.expect(rows >= 3 && rows <= 6, "%lu rows of at most 6", rows);
}};

const Planted bugs[] = {
    {"the head is stored relaxed", readers, {{{kHead, kStore, Effect::relax}}}},
    {"the head is loaded relaxed", readers, {{{kHead, kLoad, Effect::relax}}}},
    {"payload words are stored relaxed", readers, {{{kPayload, kStore, Effect::relax}}}},
    {"payload words are loaded relaxed", readers, {{{kPayload, kLoad, Effect::relax}}}},
    {"row heads are stored relaxed", readers, {{{kMeta, kStore, Effect::relax}}}},
    {"row heads are loaded relaxed", readers, {{{kMeta, kLoad, Effect::relax}}}},
    {"no second look at the head", readers, {.reads_unchecked = true}},
    {"the row being overwritten is trusted", readers, {.trusts_one_more = true}},
    {"the epoch is not looked at", replaced, {{{kEpoch, kLoad, Effect::blind, kEpoch}}}},
};

}  // namespace
}  // namespace fw::model
