// The counter with real threads and a real futex.
#include <sys/mman.h>
#include <sys/wait.h>

#include <memory>
#include <thread>

#include "../waits.hpp"
#include "check.hpp"
#include "content.hpp"

using namespace fw;
using namespace fw::test;

namespace {

constexpr i64 ms = 1'000'000;
constexpr auto never = [] { return false; };

struct Shared {
  WordPolicy::word words[3]{};
  Counter<WordPolicy> counter{words};
  explicit Shared(u64 start) { counter.format(start); }
};

// The median time from add() to the return of wait(), back and forth between two waiters.
i64 median_wake_ns(Counter<WordPolicy>& ping, Counter<WordPolicy>& pong, int rounds, auto run_other) {
  auto other = run_other([=]() mutable {
    for (u64 i = 1; i <= u64(rounds); ++i) {
      ping.wait(i, now_ns() + 10'000 * ms, never);
      pong.add(1);
    }
  });
  std::vector<i64> times;
  for (u64 i = 1; i <= u64(rounds); ++i) {
    const i64 begin = now_ns();
    ping.add(1);
    CHECK(pong.wait(i, now_ns() + 10'000 * ms, never), "round %d was never answered", int(i));
    times.push_back((now_ns() - begin) / 2);
  }
  other();
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[std::size_t(rounds / 2)];
}

}  // namespace

TEST(counter_adders_and_waiters) {
  const u64 each = quick_or_full(50'000, 500'000) / (is_sanitized ? 10 : 1);
  for (int turn = 0; turn < 3; ++turn) {
    const u64 start = near_a_limit(u64(turn));
    Shared shared(start);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&] {
        for (u64 n = 0; n < each; ++n) shared.counter.add(1);
      });
    for (u64 stride : {1u, 7u})
      threads.emplace_back([&, stride] {
        for (u64 want = stride; want <= 2 * each; want += stride) {
          const bool is_reached = shared.counter.wait(start + want, now_ns() + 30'000 * ms, never);
          CHECK(is_reached, "asleep at %lu of %lu", want, 2 * each);
          if (!is_reached) return;
          CHECK(i64(shared.counter.load() - start - want) >= 0, "awake before the count");
        }
      });
    for (std::thread& t : threads) t.join();
    CHECK(shared.counter.load() == start + 2 * each, "additions were lost");
  }
}

TEST(counter_deadline_and_interruption) {
  for (int turn = 0; turn < 3; ++turn) {
    const u64 start = near_a_limit(u64(turn));
    Shared shared(start);
    CHECK(shared.counter.wait(start, 0, never), "a count that is there needs no time");
    CHECK(!shared.counter.wait(start + 1, 0, never), "the deadline is over");
    const i64 begin = now_ns();
    CHECK(!shared.counter.wait(start + 1, begin + 30 * ms, never), "nobody added anything");
    const i64 took = now_ns() - begin;
    CHECK(took >= 30 * ms && took < 500 * ms, "30 ms took %.1f ms", double(took) / ms);
    CHECK(!shared.counter.wait(start + 1, now_ns() + 60'000 * ms, [] { return true; }), "it was interrupted");
    shared.counter.add(1);
    CHECK(shared.counter.wait(start + 1, 0, never), "reached");
  }
}

TEST(counter_wakes_soon) {
  Shared ping(0), pong(0);
  const i64 ns = median_wake_ns(ping.counter, pong.counter, 1000, [](auto body) {
    return [thread = std::make_shared<std::thread>(body)] { thread->join(); };
  });
  // Usually 5-50 us here; so much slower means that something polls or sleeps its second out.
  CHECK(ns < 20 * ms, "a wake-up took %.3f ms", double(ns) / ms);
}

TEST(counter_across_processes) {
#if defined(__SANITIZE_THREAD__)
  skipped = "ThreadSanitizer does not follow other processes";
#else
  void* at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* words = new (at) WordPolicy::word[6]{};
  Counter<WordPolicy> ping(words), pong(words + 3);
  ping.format(0);
  pong.format(0);
  const i64 ns = median_wake_ns(ping, pong, 1000, [](auto body) {
    const pid_t child = fork();
    if (child == 0) {
      body();
      _exit(0);
    }
    return [child] {
      int status = -1;
      waitpid(child, &status, 0);
      CHECK(status == 0, "the other process ended with %d", status);
    };
  });
  CHECK(ns < 20 * ms, "a wake-up took %.3f ms", double(ns) / ms);
  munmap(at, 4096);
#endif
}
