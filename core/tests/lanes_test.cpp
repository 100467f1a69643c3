// Lanes with real threads: every trusted row is whole (F10); a reader that trusts all it copied is seen to be wrong.
#include "../lanes.hpp"

#include <thread>

#include "check.hpp"
#include "content.hpp"

using namespace fw;
using namespace fw::test;

namespace {

using Words = std::vector<WordPolicy::word>;

struct Reads {
  std::atomic<u64> trusted{0}, overwritten{0}, torn{0};
};

// One lane whose rows follow from their number: an observation of `bytes`, and an action of 3 that last rows lack.
template <class P>
struct World {
  std::vector<Field> fields;
  LaneShape shape;
  Words words;
  Lanes<P> lanes;
  u64 start;

  World(std::size_t slots, std::size_t bytes, u64 first_row)
      : fields{{0, bytes, true}, {words_for(bytes), 3, false}},
        shape{1, slots, words_for(bytes) + 1},
        words(Lanes<P>::num_words(shape)),
        lanes(words.data(), shape),
        start(first_row) {
    lanes.format(start);
  }

  static u64 word_of(u64 row, std::size_t i) { return content(row, 0) + i * 0x9e3779b97f4a7c15u; }
  static u32 flags_of(u64 row) { return row % 5 ? 0 : row % 2 ? u32(kTerminated) : u32(kTruncated); }
  static float reward_of(u64 row) { return float(row & 0xffffff); }

  bool append(u64 epoch, u64 row, std::vector<u64>& scratch) {
    scratch.resize(shape.payload_words);
    for (std::size_t i = 0; i < scratch.size(); ++i) scratch[i] = word_of(row, i);
    const char* from = reinterpret_cast<const char*>(scratch.data());
    const char* sources[] = {from, flags_of(row) ? nullptr : from + fields[1].offset_words * 8};
    return lanes.append(0, epoch, {reward_of(row), flags_of(row), row * 3}, row * 7, -1, fields, sources);
  }

  bool is_whole(u64 row, RowHead head, u64 version, const std::vector<u64>& observation, u64 action) const {
    if (head.reward != reward_of(row) || head.flags != flags_of(row) || head.step != row * 3 || version != row * 7)
      return false;
    u64 last = 0;  // the bytes of the last word that the observation has
    const std::size_t full = fields[0].bytes / 8, rest = fields[0].bytes % 8;
    for (std::size_t i = 0; i < full; ++i)
      if (observation[i] != word_of(row, i)) return false;
    const u64 expected = word_of(row, full);
    std::memcpy(&last, &expected, rest);
    if (rest && observation[full] != last) return false;
    return head.flags || action == (word_of(row, fields[1].offset_words) & 0xffffff);
  }

  void read(const std::atomic<bool>& stop, bool is_checked, u64 seed, Reads& reads) const {
    std::vector<u64> observation(words_for(fields[0].bytes));
    for (u64 turn = 0; !stop.load(std::memory_order_relaxed); ++turn) {
      const u64 head = lanes.head(0), kept = std::min<u64>(head - start, shape.slots - 1);
      if (!kept) continue;
      const u64 row = head - 1 - content(turn, seed) % kept;
      const std::size_t slot = lanes.slot_of(0, row);
      u64 action = 0;
      const RowHead found = lanes.row_head(0, slot);
      const u64 version = lanes.version(0, slot);
      lanes.copy_field(observation.data(), 0, slot, fields[0]);
      lanes.copy_field(&action, 0, slot, fields[1]);
      if (is_checked && !lanes.intact(row, lanes.head(0))) {
        reads.overwritten.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      reads.trusted.fetch_add(1, std::memory_order_relaxed);
      if (!is_whole(row, found, version, observation, action)) reads.torn.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // A writer and two readers, until the time is over or `enough` says so.
  template <class Enough>
  void run(Reads& reads, bool is_checked, i64 for_ns, Enough enough) {
    std::atomic<bool> stop{false};
    std::vector<std::thread> readers;
    for (u64 i = 0; i < 2; ++i) readers.emplace_back([&, i] { read(stop, is_checked, i, reads); });
    const u64 epoch = lanes.open(0);
    std::vector<u64> scratch;
    u64 row = start;
    for (const i64 end = now_ns() + for_ns; now_ns() < end && !enough();)
      for (int i = 0; i < 100; ++i) {
        CHECK(append(epoch, row++, scratch), "the lane's own writer was refused");
        lanes.announce(1);
      }
    stop = true;
    for (std::thread& t : readers) t.join();
    CHECK(lanes.head(0) == row && lanes.rows().load() == row - start, "rows were lost");
  }
};

// The lane is given away while its writer copies a row.
struct GivenAwayPolicy : WordPolicy {
  static inline Lanes<WordPolicy>* lanes = nullptr;
  static void copy_in(word* to, const void* from, std::size_t bytes) {
    WordPolicy::copy_in(to, from, bytes);
    if (lanes) lanes->open(0);
  }
};

template <class P>
void write_and_read(std::size_t slots, std::size_t bytes, u64 start, i64 for_ns) {
  World<P> world(slots, bytes, start);
  Reads reads;
  world.run(reads, true, for_ns, [] { return false; });
  CHECK(reads.trusted > 0, "%zu slots of %zu bytes: not one row could be read", slots, bytes);
  CHECK(reads.torn == 0, "%zu slots of %zu bytes: %lu rows torn", slots, bytes, reads.torn.load());
}

}  // namespace

TEST(lanes_threads) {
  const i64 for_ns = quick_or_full(60, 600) * 1'000'000ll;
  u64 turn = 0;
  for (const std::size_t slots : {3, 64})
    for (const std::size_t bytes : {8, 100, 1000}) {
      write_and_read<NativePolicy>(slots, bytes, near_a_limit(turn++), for_ns);
      write_and_read<WordPolicy>(slots, bytes, near_a_limit(turn++), for_ns);
    }
}

// The test above can see: without the second look at the head, rows are torn.
TEST(lanes_unchecked_reader_is_torn) {
  World<NativePolicy> world(2, 500, 0);
  Reads reads;
  world.run(reads, false, 20'000'000'000, [&] { return reads.torn.load() > 0; });
  CHECK(reads.torn > 0, "no torn row in %lu unchecked reads", reads.trusted.load());
}

TEST(lanes_refuse_a_replaced_writer) {
  World<WordPolicy> world(4, 16, near_a_limit(2));
  std::vector<u64> scratch;
  const u64 old_epoch = world.lanes.open(0);
  CHECK(world.append(old_epoch, world.start, scratch), "the first writer");
  const u64 epoch = world.lanes.open(0);
  CHECK(epoch != old_epoch && !world.append(old_epoch, world.start + 1, scratch), "the old epoch was let in");
  CHECK(world.lanes.head(0) == world.start + 1, "a refused writer moved the head");
  CHECK(world.append(epoch, world.start + 1, scratch), "the successor");
  CHECK(world.lanes.head(0) == world.start + 2, "the successor goes on where the first one was");
}

TEST(lanes_refuse_a_writer_replaced_within_a_row) {
  World<GivenAwayPolicy> world(4, 16, 0);
  Lanes<WordPolicy> same(world.words.data(), world.shape);
  std::vector<u64> scratch;
  const u64 epoch = world.lanes.open(0);
  CHECK(world.append(epoch, 0, scratch), "nobody took the lane");
  GivenAwayPolicy::lanes = &same;
  CHECK(!world.append(epoch, 1, scratch), "the old writer committed a row");
  CHECK(world.lanes.head(0) == 1, "a refused writer moved the head");
}

// A priority counts for the row it was given to, and for no other that comes to the same slot; 0 is a priority too.
TEST(lanes_priorities_know_their_row) {
  for (u64 turn = 0; turn < 3; ++turn) {
    World<WordPolicy> world(4, 16, near_a_limit(turn));
    for (u64 row = world.start; row != world.start + 40; ++row) {
      const std::size_t slot = world.lanes.slot_of(0, row);
      CHECK(world.lanes.priority(0, slot, row, 9) == 9, "a row has a priority before it was given one");
      const float priority = row % 2 ? 0.0f : 0.25f;
      world.lanes.set_priority(0, slot, row, priority);
      CHECK(world.lanes.priority(0, slot, row, 9) == priority, "a priority was lost");
      CHECK(world.lanes.priority(0, slot, row + 4, 9) == 9, "the next row in the slot took it over");
    }
  }
}

TEST(lanes_slots_go_round) {
  World<WordPolicy> world(7, 8, near_a_limit(2));
  for (u64 row = world.start; row != world.start + 20; ++row)
    for (i64 by = -6; by <= 6; ++by)
      if (i64(row - world.start) + by >= 0)
        CHECK(world.lanes.slot_shift(world.lanes.slot_of(0, row), by) == world.lanes.slot_of(0, row + u64(by)),
              "row %d by %d", int(row - world.start), int(by));
}
