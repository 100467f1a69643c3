// Counter: a shared 64-bit count that others can wait for.
//
// Contract
//   * add() never blocks. Its cost without sleepers is one atomic addition and one load.
//   * wait() returns true once the count has reached the target, false when the deadline passed or `interrupted()` said so
//     after a sleep; what came before the call is the caller's to look at. It sleeps on a futex; it does not poll.
//   * A sleeper is woken only when its target is reached: it leaves the lowest wanted count in `wake_at`.
//   * No wake-up is lost. add() changes the count before it reads wake_at, wait() writes wake_at before it reads the count
//     (both sequentially consistent), so at least one of the two sees the other. Whoever clears wake_at moves `round` on
//     afterwards, and sleepers sleep on the round they saw before they registered.
//   * A process killed at any point leaves at most one needless wake-up behind, or lets sleepers sleep a second longer.
//   * Counts are compared by difference, so they stay right across 2^32 and 2^64.
#pragma once

#include "policy.hpp"

namespace fw {

template <class P>
class Counter {
 public:
  using word = typename P::word;
  static constexpr std::size_t num_words = 3;  // count, wake_at, round

  Counter() = default;
  explicit Counter(word* words) : count_(words), wake_at_(words + 1), round_(words + 2) {}

  void format(u64 start) {
    count_->store(start, std::memory_order_relaxed);
    wake_at_->store(nobody(start), std::memory_order_relaxed);
    round_->store(0, std::memory_order_release);
  }

  u64 load() const { return count_->load(std::memory_order_acquire); }

  void add(u64 n) {
    const u64 count = count_->fetch_add(n, std::memory_order_seq_cst) + n;
    if (!reached(count, wake_at_->load(std::memory_order_seq_cst))) return;
    wake_at_->store(nobody(count), std::memory_order_seq_cst);
    round_->fetch_add(1, std::memory_order_seq_cst);
    P::wake(round_);
  }

  template <class Interrupted>
  bool wait(u64 target, i64 until_ns, Interrupted interrupted) const {
    if (reached(load(), target)) return true;  // without registering, which would cost the next add() a wake-up
    for (bool has_slept = false;; has_slept = true) {
      const u64 round = round_->load(std::memory_order_seq_cst);
      u64 wanted = wake_at_->load(std::memory_order_seq_cst);
      while (earlier(target, wanted) &&
             !wake_at_->compare_exchange_weak(wanted, target, std::memory_order_seq_cst)) {
      }
      if (reached(count_->load(std::memory_order_seq_cst), target)) return true;
      const i64 now = P::now();
      if (now >= until_ns || (has_slept && interrupted())) return false;
      // At most a second at a time: a signal that lands just before the sleep does not cut it short.
      P::sleep(round_, round, std::min(until_ns, now + 1'000'000'000));
    }
  }

 private:
  // Half the number circle ahead of the count: reached by nobody in practice, earlier than no real target.
  static u64 nobody(u64 count) { return count + (u64(1) << 63) - 1; }
  static bool reached(u64 count, u64 target) { return i64(count - target) >= 0; }
  static bool earlier(u64 a, u64 b) { return i64(a - b) < 0; }

  word* count_ = nullptr;
  word* wake_at_ = nullptr;
  word* round_ = nullptr;
};

}  // namespace fw
