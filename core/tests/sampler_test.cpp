// The sampler and its feed with real threads: every sample of every batch is right while writers overwrite the lanes.
#include <deque>
#include <thread>

#include "../feed.hpp"
#include "check.hpp"
#include "content.hpp"
#include "story.hpp"

using namespace fw;
using namespace fw::test;

namespace {

constexpr auto never = [] { return false; };
i64 soon() { return now_ns() + 20'000'000'000; }

template <class P>
struct World {
  Story story;
  LaneShape shape;
  std::vector<WordPolicy::word> words;
  Lanes<P> lanes;

  World(std::size_t num_rows, std::size_t num_lanes, std::size_t slots, std::size_t bytes, u64 first_row)
      : story(num_rows, 1, first_row, bytes),
        shape{num_lanes, slots, story.payload_words()},
        words(Lanes<P>::num_words(shape)),
        lanes(words.data(), shape) {
    lanes.format(first_row);
    for (std::size_t lane = 0; lane < num_lanes; ++lane) lanes.open(lane);
  }

  void write(std::size_t lane, std::size_t first, std::size_t end) {
    std::vector<char> scratch;
    for (std::size_t i = first; i < end; ++i) {
      const bool is_in = story.append(lanes, lane, 1, i, i % 7 ? -1.0f : float(i % 3), scratch);  // see has_priority_0
      CHECK(is_in, "the lane's own writer was refused");
    }
    lanes.announce(end - first);
  }

  void check(const BatchOut& out, const SampleSettings& set, std::vector<char>& scratch) const {
    for (std::size_t i = 0; i < set.rows(); ++i) {
      const char* wrong = story.wrong_with(out, i, set, scratch);
      CHECK(!wrong, "lane %ld row %lx, n %zu, stack %zu: %s", out.lane[i], u64(out.row[i]), set.n_step, set.stack, wrong);
    }
  }
};

bool has_priority_0(std::size_t row, bool prioritized) { return prioritized && row % 7 == 0 && row % 3 == 0; }

// Priorities as a learner gives them: from the sample itself, now and then 0, often for rows that are gone by then.
std::vector<float> priorities_of(const BatchOut& out, std::size_t batch) {
  std::vector<float> made;
  for (std::size_t i = 0; i < batch; ++i) made.push_back(float(content(u64(out.row[i]), 1) % 16) / 4);
  return made;
}

// A writer per lane, and a learner that takes batches through a feed until all is written.
template <class P>
void write_and_sample(bool prioritized, std::size_t depth, std::size_t n_step, std::size_t stack, u64 first_row) {
  const std::size_t num_rows = quick_or_full(200'000, 3'000'000) / (is_sanitized ? 10 : 1), rows_before = 30;
  World<P> world(num_rows, 2, 40, 100, first_row);
  const SampleSettings set{.batch = 70, .n_step = n_step, .stack = stack, .seed = 5};  // more than one chunk
  Sampler<P> sampler(world.lanes, world.story.fields, set, prioritized);
  std::deque<Room> rooms;
  std::vector<char> scratch;
  u64 batches = 0;
  std::atomic<int> writing{2};
  {
    Feed<P> feed(sampler, depth);
    for (std::size_t i = 0; i < depth + 2; ++i) feed.add_buffer(rooms.emplace_back(world.story.fields, set).out);
    for (std::size_t lane = 0; lane < 2; ++lane) world.write(lane, 0, rows_before);
    std::vector<std::thread> writers;
    for (std::size_t lane = 0; lane < 2; ++lane)
      writers.emplace_back([&, lane] {
        world.write(lane, rows_before, num_rows);
        --writing;
      });
    int held = Feed<P>::none;  // one batch stays in hand while the next is taken, as training does
    while (writing || batches < 20) {
      int taken = Feed<P>::none;
      try {
        taken = feed.take(soon(), never);
      } catch (const Refused&) {
        continue;  // the writers lapped every try; that may be, wrong samples may not
      }
      CHECK(taken >= 0, "no batch: %d", taken);
      if (taken < 0) break;
      const BatchOut& out = feed.buffer(taken);
      sampler.weigh(feed.buffer(taken), 0.4);
      world.check(out, set, scratch);
      feed.post(taken, priorities_of(out, set.batch));
      if (held >= 0) {
        world.check(feed.buffer(held), set, scratch);  // still what it was
        feed.release(held);
      }
      held = taken;
      ++batches;
    }
    for (std::thread& t : writers) t.join();
  }
  CHECK(sampler.stats().batches.load() >= batches && batches >= 20, "%lu batches", batches);
}

}  // namespace

TEST(sampler_with_writers) {
  u64 turn = 0;
  for (const bool prioritized : {false, true})
    for (const std::size_t depth : {0, 2}) {
      write_and_sample<NativePolicy>(prioritized, depth, 1 + turn % 3, 1 + turn % 4, near_a_limit(turn));
      ++turn;
    }
  write_and_sample<WordPolicy>(true, 2, 3, 2, near_a_limit(turn));
}

// The test above can see: a sampler without its check gives wrong samples.
TEST(sampler_unchecked_is_wrong) {
  World<NativePolicy> world(1'000'000, 1, 5, 2000, 0);
  const SampleSettings set{.batch = 2, .stack = 2};
  Sampler<NativePolicy> sampler(world.lanes, world.story.fields, set, false);
  sampler.distrust_check(true);
  Room room(world.story.fields, set);
  std::vector<char> scratch;
  std::atomic<bool> stop{false};
  world.write(0, 0, 20);
  std::thread writer([&] {
    std::vector<char> own;
    for (std::size_t i = 20; i < world.story.num_rows() && !stop; ++i) world.story.append(world.lanes, 0, 1, i, -1, own);
  });
  u64 num_torn = 0, batches = 0;
  for (const i64 end = soon(); !num_torn && now_ns() < end; ++batches) {
    try {
      sampler.fill(room.out);
    } catch (const Refused&) {
      continue;
    }
    for (std::size_t i = 0; i < set.batch; ++i) num_torn += bool(world.story.wrong_with(room.out, i, set, scratch));
  }
  stop = true;
  writer.join();
  CHECK(num_torn > 0, "not one wrong sample in %lu unchecked batches", batches);
}

// At rest: every sample is right at the first draw, and every priority arrives, from the first lap of a lane to the third.
TEST(sampler_at_rest) {
  std::vector<char> scratch;
  for (u64 turn = 0; turn < 3; ++turn)
    for (const std::size_t n_step : {1, 2, 5, 10})
      for (const std::size_t stack : {1, 2, 4, 8}) {
        const std::size_t slots = n_step + stack + 12;
        World<NativePolicy> world(3 * slots, 2, slots, 12, near_a_limit(turn));
        const SampleSettings set{.batch = 10, .n_step = n_step, .stack = stack, .seed = turn};
        Sampler<NativePolicy> uniform(world.lanes, world.story.fields, set, false);
        Sampler<NativePolicy> prioritized(world.lanes, world.story.fields, set, true);
        Room room(world.story.fields, set);
        for (std::size_t i = 0; i < world.story.num_rows(); ++i) {
          for (std::size_t lane = 0; lane < 2; ++lane) world.write(lane, i, i + 1);
          if (i < n_step + (turn % 2 ? 5 : 15)) continue;  // a tree may be made early or late in a lane's first lap
          uniform.fill(room.out);
          world.check(room.out, set, scratch);
          prioritized.fill(room.out);
          world.check(room.out, set, scratch);
          const std::vector<float> priorities(set.batch, 0.5f);
          prioritized.update(room.out.lane, room.out.row, priorities.data(), set.batch);
        }
        const u64 redraws = uniform.stats().redraws + prioritized.stats().redraws;
        const u64 stale = prioritized.stats().stale_priorities;
        CHECK(redraws == 0, "n %zu, stack %zu: %lu rows redrawn, with no writer about", n_step, stack, redraws);
        CHECK(stale == 0, "n %zu, stack %zu: %lu priorities ignored, with no writer about", n_step, stack, stale);
      }
}

// With the lane filled row by row, past its wrap: what is drawn is exactly what may be drawn.
TEST(sampler_reaches_every_start) {
  for (const bool prioritized : {false, true})
    for (const std::size_t n_step : {1, 3})
      for (const std::size_t stack : {1, 3, 6}) {
        const std::size_t slots = n_step + stack + 6;
        World<NativePolicy> world(3 * slots, 1, slots, 8, 0);
        const SampleSettings set{.batch = 4, .n_step = n_step, .stack = stack};
        Sampler<NativePolicy> sampler(world.lanes, world.story.fields, set, prioritized);
        Room room(world.story.fields, set);
        for (std::size_t written = 0; written < world.story.num_rows();) {
          world.write(0, written, written + 1);
          if (++written < n_step + 5) continue;
          std::vector<bool> drawn(world.story.num_rows());
          for (int i = 0; i < 200; ++i) {
            sampler.fill(room.out);
            for (std::size_t k = 0; k < set.batch; ++k) drawn[std::size_t(room.out.row[k])] = true;
          }
          const std::size_t oldest = written > slots - 1 ? written - (slots - 1) + (stack - 1) : 0;
          for (std::size_t row = 0; row < written; ++row) {
            const bool may_be = world.story.is_start(row, oldest, written, n_step) && !has_priority_0(row, prioritized);
            CHECK(drawn[row] == may_be, "priority %d, n %zu, stack %zu: row %zu of %zu was%s drawn", prioritized, n_step,
                  stack, row, written, drawn[row] ? "" : " not");
          }
        }
      }
}

TEST(sampler_same_seed_same_batches) {
  World<NativePolicy> world(500, 2, 100, 16, 0);
  for (std::size_t lane = 0; lane < 2; ++lane) world.write(lane, 0, 500);
  for (const bool prioritized : {false, true}) {
    const SampleSettings set{.batch = 64, .n_step = 2, .seed = 42};
    SampleSettings other = set;
    other.seed = 43;
    Room a(world.story.fields, set), b(world.story.fields, set), c(world.story.fields, set);
    Sampler<NativePolicy> first(world.lanes, world.story.fields, set, prioritized);
    Sampler<NativePolicy> same(world.lanes, world.story.fields, set, prioritized);
    Sampler<NativePolicy> different(world.lanes, world.story.fields, other, prioritized);
    for (int i = 0; i < 5; ++i) {
      first.fill(a.out), same.fill(b.out), different.fill(c.out);
      CHECK(a.integers == b.integers && a.fields == b.fields, "two samplers of one seed differ in batch %d", i);
      CHECK(a.integers != c.integers, "two seeds gave the same batch");
    }
  }
}

// What a feed says when it has nothing to give: all lent out, too few rows, nothing within the deadline.
TEST(feed_says_why_there_is_no_batch) {
  for (const std::size_t depth : {0, 3}) {
    World<NativePolicy> world(200, 1, 64, 16, 0);
    const SampleSettings set{.batch = 8};
    Sampler<NativePolicy> sampler(world.lanes, world.story.fields, set, false);
    Room one(world.story.fields, set), two(world.story.fields, set);
    Feed<NativePolicy> feed(sampler, depth);
    CHECK(feed.take(soon(), never) == Feed<NativePolicy>::none, "there is no buffer yet");
    feed.add_buffer(one.out);
    for (int i = 0; i < 3; ++i) {
      bool is_refused = false;
      try {
        feed.take(soon(), never);
      } catch (const Refused&) {
        is_refused = true;
      }
      CHECK(is_refused, "an empty replay has no batch");
    }
    world.write(0, 0, 60);
    const int first = feed.take(soon(), never);
    CHECK(first == 0, "the error is over when rows are there: %d", first);
    CHECK(feed.take(soon(), never) == Feed<NativePolicy>::none, "the only buffer is lent");
    feed.add_buffer(two.out);
    CHECK(feed.take(soon(), never) == 1, "the other buffer");
    feed.release(0);
    CHECK(feed.take(soon(), never) == 0, "a buffer that was given back is lent again");
  }
}

// Four threads with one feed: each has batches of its own, and every sample is right.
TEST(feed_serves_several_threads) {
  for (const bool prioritized : {false, true})
    for (const std::size_t depth : {0, 2}) {
      constexpr std::size_t num_threads = 4;
      const std::size_t num_batches = quick_or_full(500, 5'000) / (is_sanitized ? 10 : 1);
      World<NativePolicy> world(400, 2, 100, 40, 0);
      for (std::size_t lane = 0; lane < 2; ++lane) world.write(lane, 0, 400);
      const SampleSettings set{.batch = 10, .n_step = 2, .stack = 2, .updates = 3};
      Sampler<NativePolicy> sampler(world.lanes, world.story.fields, set, prioritized);
      std::deque<Room> rooms;
      std::atomic<std::size_t> taken{0};
      {
        Feed<NativePolicy> feed(sampler, depth);
        for (std::size_t i = 0; i < depth + num_threads; ++i) feed.add_buffer(rooms.emplace_back(world.story.fields, set).out);
        std::vector<std::thread> threads;
        for (std::size_t t = 0; t < num_threads; ++t)
          threads.emplace_back([&] {
            std::vector<char> scratch;
            for (std::size_t i = 0; i < num_batches; ++i) {
              const int index = feed.take(soon(), never);
              CHECK(index >= 0, "no batch: %d", index);
              if (index < 0) return;
              ++taken;
              world.check(feed.buffer(index), set, scratch);
              feed.post(index, priorities_of(feed.buffer(index), set.rows()));
              world.check(feed.buffer(index), set, scratch);
              feed.release(index);
            }
          });
        for (std::thread& t : threads) t.join();
      }
      CHECK(taken == num_threads * num_batches, "%zu batches", taken.load());
      const u64 made = sampler.stats().batches.load();
      CHECK(made >= taken && made <= taken + depth, "%lu batches for %zu taken", made, taken.load());
    }
}

// The weights of each update of a draw are over its own largest, however few rows it has.
TEST(sampler_weighs_each_update_by_itself) {
  World<NativePolicy> world(400, 4, 101, 8, 0);
  for (std::size_t lane = 0; lane < 4; ++lane) world.write(lane, 0, 400);
  for (const std::size_t batch : {1, 2, 3, 6, 30}) {
    const SampleSettings set{.batch = batch, .alpha = 1, .updates = 5};
    Sampler<NativePolicy> sampler(world.lanes, world.story.fields, set, true);
    Room room(world.story.fields, set);
    std::vector<char> scratch;
    for (int i = 0; i < 200; ++i) {
      sampler.fill(room.out);
      world.check(room.out, set, scratch);
      sampler.weigh(room.out, 1.0);
      for (std::size_t first = 0; first < set.rows(); first += batch) {
        const float* chance = room.out.chance + first;
        const float least = *std::min_element(chance, chance + batch);
        for (std::size_t k = 0; k < batch; ++k) {
          const float want = least / chance[k], weight = room.out.weight[first + k];
          CHECK(std::abs(weight - want) < 1e-5f, "weight %f, not %f", double(weight), double(want));
        }
      }
      const std::vector<float> priorities = priorities_of(room.out, set.rows());
      sampler.update(room.out.lane, room.out.row, priorities.data(), set.rows());
    }
  }
}
