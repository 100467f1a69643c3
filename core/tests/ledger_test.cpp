// The ledger: phases leave no gap, snapshots are of one moment, a mark costs next to nothing.
#include "../ledger.hpp"

#include <thread>
#include <vector>

#include "check.hpp"

using namespace fw;
using namespace fw::test;

namespace {

struct Shared {
  std::vector<WordPolicy::word> words;
  Ledger<WordPolicy> ledger;
  Shared(std::size_t phases, std::size_t counters, std::size_t gauges)
      : words(Ledger<WordPolicy>::num_words(phases, counters, gauges)), ledger(words.data(), phases, counters, gauges) {}
};

}  // namespace

TEST(ledger_phases_leave_no_gap) {
  Shared shared(3, 0, 0);
  u64 now[3];
  CHECK(shared.ledger.snapshot(now) && now[0] + now[1] + now[2] == 0, "time before the start");
  const i64 begin = now_ns();
  shared.ledger.start(0);
  for (std::size_t i = 0; i < 3000; ++i) shared.ledger.enter(i % 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the running phase counts as well
  const i64 before = now_ns();
  CHECK(shared.ledger.snapshot(now), "no whole snapshot at rest");
  const i64 sum = i64(now[0] + now[1] + now[2]);
  CHECK(sum <= now_ns() - begin && sum >= before - begin - 1'000'000, "phases %ld ns, wall %ld ns", sum,
        before - begin);
  CHECK(now[2] >= 5'000'000, "the running phase has %lu ns", now[2]);
}

// The second count follows the first, the gauge follows both: seen together they are at most one change apart.
TEST(ledger_snapshots_are_of_one_moment) {
  Shared shared(2, 2, 1);
  Ledger<WordPolicy>& ledger = shared.ledger;
  std::atomic<bool> stop{false};
  std::atomic<u64> whole{0};
  ledger.start(0);
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&] {
      u64 now[5], before[5] = {};
      while (!stop.load()) {
        if (!ledger.snapshot(now)) continue;  // the writer lost its core in the middle of a change
        const u64 gauge = u64(std::bit_cast<double>(now[4]));
        CHECK(now[2] - now[3] <= 1 && now[3] - gauge <= 1, "counts of no moment");
        CHECK(now[2] >= before[2] && now[0] + now[1] >= before[0] + before[1], "counts or time went back");
        std::copy_n(now, 5, before);
        whole.fetch_add(1);
      }
    });
  const i64 end = now_ns() + quick_or_full(100, 2000) * 1'000'000ll;
  for (u64 i = 1; now_ns() < end; ++i) {
    ledger.count(0, 1);
    ledger.count(1, 1);
    ledger.set(0, double(i));
    ledger.enter(i % 2);
  }
  stop = true;
  for (std::thread& t : readers) t.join();
  CHECK(whole > 0, "not one whole snapshot");
}

TEST(ledger_outlives_its_writer) {
  Shared shared(1, 1, 0);
  shared.ledger.count(0, 5);
  const u64 change = shared.words[0].load();
  CHECK(change % 2 == 0, "a change that is over leaves an even number");
  shared.words[0].store(change + 1);  // as a writer leaves it that dies within a change
  u64 now[2];
  CHECK(!shared.ledger.snapshot(now) && now[1] == 5, "a broken change must be told, with what is there");
  shared.ledger.count(0, 1);
  CHECK(shared.ledger.snapshot(now) && now[1] == 6, "the successor's change makes it whole again");
}

TEST(ledger_marks_are_cheap) {
  if (is_sanitized) {
    skipped = "a sanitizer's time says nothing";
    return;
  }
  Shared shared(8, 1, 0);
  i64 best = INT64_MAX;  // of many short runs: the others were interrupted
  for (int run = 0; run < 200; ++run) {
    const i64 begin = now_ns();
    for (std::size_t i = 0; i < 1000; ++i) shared.ledger.enter(i % 8);
    best = std::min(best, now_ns() - begin);
  }
  CHECK(best < 200 * 1000, "a mark costs %.1f ns, more than 200", double(best) / 1000);
}
