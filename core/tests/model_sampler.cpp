// The sampler on the model machine, against a writer that never waits for it: every sample of a batch is right.
#include "scenario.hpp"
#include "story.hpp"

namespace fw::model {
namespace {

enum : Role { kHead = 1, kMeta, kPayload };

constexpr std::size_t rows_before = 5, rows_meanwhile = 7;

SampleSettings settings_of(u64 seed) {
  return {.batch = 2, .n_step = 1 + seed % 2, .stack = 1 + seed / 2 % 2, .seed = seed};
}
std::size_t slots_of(u64 seed) { return settings_of(seed).n_step + settings_of(seed).stack + 2 + seed / 4 % 2; }

bool always_has_a_start(const test::Story& story, std::size_t slots, const SampleSettings& set) {
  for (std::size_t written = rows_before; written <= rows_before + rows_meanwhile; ++written) {
    const std::size_t oldest = written < slots ? 0 : written - (slots - 1) + (set.stack - 1);
    bool has_start = false;
    for (std::size_t row = 0; row < written; ++row) has_start |= story.is_start(row, oldest, written, set.n_step);
    if (!has_start) return false;
  }
  return true;
}

// A story in which a draw always comes to an end: a sampler that finds nothing would try again until the model gives up.
test::Story story_of(u64 seed) {
  for (u64 attempt = seed * 1000;; ++attempt) {
    const test::Story story(rows_before + rows_meanwhile, attempt, near_a_limit(seed), 8);
    if (always_has_a_start(story, slots_of(seed), settings_of(seed))) return story;
  }
}

struct World {
  test::Story story;
  SampleSettings set;
  LaneShape shape;
  Lanes<ModelPolicy> lanes;
  Sampler<ModelPolicy> sampler;
  test::Room room;
  std::vector<char> scratch, reader_scratch;
  u64 epoch;

  World(u64 seed, bool prioritized)
      : story(story_of(seed)),
        set(settings_of(seed)),
        shape{1, slots_of(seed), story.payload_words()},
        lanes(words.data(), shape),
        sampler(made(seed), story.fields, set, prioritized),
        room(story.fields, set),
        epoch(lanes.open(0)) {
    sampler.distrust_check(machine.plant.reads_unchecked);
    machine.name(kHead, words.data() + 8);
    for (std::size_t slot = 0; slot < shape.slots; ++slot) {
      machine.name(kMeta, lanes.meta_at(0, slot), Lanes<ModelPolicy>::meta_words);
      machine.name(kPayload, lanes.payload_at(0, slot), int(shape.payload_words));
    }
    write(0, rows_before);
    machine.spawn([this] { write(rows_before, rows_meanwhile); });
  }

  Lanes<ModelPolicy>& made(u64 seed) {  // the sampler asks for the base when it is made
    lanes.format(near_a_limit(seed));
    return lanes;
  }

  void write(std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i)
      machine.expect(story.append(lanes, 0, epoch, i, i % 2 ? 3.0f : -1.0f, scratch), "the writer was refused");
  }

  void fill() {
    const u64 redraws = sampler.stats().redraws.load();
    sampler.fill(room.out);
    happened(sampler.stats().redraws.load() > redraws);
    for (std::size_t i = 0; i < set.batch; ++i) {
      const char* wrong = story.wrong_with(room.out, i, set, reader_scratch);
      machine.expect(!wrong, "row %lx: %s", u64(room.out.row[i]), wrong ? wrong : "");
    }
  }
};

const Scenario uniform{"sampler/uniform", "batches drawn once", "batches with redrawn rows", [](u64 seed) {
  World world(seed, false);
  machine.spawn([&] {
    for (int i = 0; i < 3; ++i) world.fill();
  });
  machine.run();
}};

const Scenario prioritized{"sampler/prioritized", "batches drawn once", "batches with redrawn rows", [](u64 seed) {
  World world(seed, true);
  machine.spawn([&] {
    for (int i = 0; i < 3; ++i) {
      world.fill();
      const float priorities[] = {0.1f, 10.0f};
      world.sampler.update(world.room.out.lane, world.room.out.row, priorities, 2);
    }
  });
  machine.run();
}};

const Planted bugs[] = {
    {"the sampler does not look again", uniform, {.reads_unchecked = true}},
    {"the sampler does not look again at drawn rows", prioritized, {.reads_unchecked = true}},
    {"the sampler's payload loads are relaxed", uniform, {{{kPayload, kLoad, Effect::relax}}}},
    {"the sampler's row head loads are relaxed", uniform, {{{kMeta, kLoad, Effect::relax}}}},
    {"the sampler's head loads are relaxed", prioritized, {{{kHead, kLoad, Effect::relax}}}},
};

}  // namespace
}  // namespace fw::model
