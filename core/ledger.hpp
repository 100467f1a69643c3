// Ledger: where one role's time went, what it counted, and its last readings, in shared memory.
//
// Contract
//   * One writer (a thread of the role), any number of readers.
//   * enter(phase) closes the running phase and opens another with one clock reading: the phases leave no gap.
//   * snapshot() is of one moment: it retries (bounded) while the writer is in the middle of a change, and adds the time the
//     running phase has lasted so far.
//   * Values are 64-bit words: phases in nanoseconds, counters as integers, gauges as float64.
#pragma once

#include "policy.hpp"

namespace fw {

template <class P>
class Ledger {
 public:
  using word = typename P::word;
  // A change takes nanoseconds, but its writer may lose its core in the middle of one: after every 64 tries the reader
  // sleeps 100 us, and after 20 ms in all it takes the writer for dead.
  static constexpr int max_tries = 64 * 200;

  static std::size_t num_words(std::size_t phases, std::size_t counters, std::size_t gauges) {
    return (header_words + phases + counters + gauges + 7) / 8 * 8;
  }

  Ledger() = default;
  Ledger(word* words, std::size_t phases, std::size_t counters, std::size_t gauges)
      : change_(words), current_(words + 1), since_(words + 2), values_(words + header_words),
        phases_(phases), counters_(counters), gauges_(gauges) {}

  std::size_t num_values() const { return phases_ + counters_ + gauges_; }
  std::size_t num_phases() const { return phases_; }
  std::size_t num_counters() const { return counters_; }
  std::size_t num_gauges() const { return gauges_; }

  // The clock starts here: nothing before it is accounted for.
  void start(std::size_t phase) {
    const u64 change = begin();
    current_->store(phase, std::memory_order_release);
    since_->store(u64(now_ns()), std::memory_order_release);
    finish(change);
  }

  void enter(std::size_t phase) {
    const u64 now = u64(now_ns());
    const std::size_t current = current_->load(std::memory_order_relaxed);
    const u64 since = since_->load(std::memory_order_relaxed);
    const u64 change = begin();
    if (since) add_to(current, now - since);
    current_->store(phase, std::memory_order_release);
    since_->store(now, std::memory_order_release);
    finish(change);
  }

  void count(std::size_t counter, u64 n) {
    const u64 change = begin();
    add_to(phases_ + counter, n);
    finish(change);
  }

  void set(std::size_t gauge, double value) {
    const u64 change = begin();
    values_[phases_ + counters_ + gauge].store(std::bit_cast<u64>(value), std::memory_order_release);
    finish(change);
  }

  // False when the writer stopped in the middle of a change (it died there); the values are then as far as it got.
  bool snapshot(u64* out) const {
    for (int i = 0; i < max_tries; ++i) {
      const u64 change = change_->load(std::memory_order_acquire);
      for (std::size_t v = 0; v < num_values(); ++v) out[v] = values_[v].load(std::memory_order_acquire);
      const u64 current = current_->load(std::memory_order_acquire);
      const u64 since = since_->load(std::memory_order_acquire);
      const bool whole = change % 2 == 0 && change_->load(std::memory_order_acquire) == change;
      if (!whole && i + 1 < max_tries) {
        if (i % 64 == 63) std::this_thread::sleep_for(std::chrono::microseconds(100));
        continue;
      }
      if (since && current < phases_) out[current] += u64(now_ns()) - since;
      return whole;
    }
    return false;
  }

 private:
  static constexpr std::size_t header_words = 8;

  // Odd while a change is under way. The changed words are stored with release, so whoever sees one sees the odd number.
  u64 begin() {
    const u64 change = change_->load(std::memory_order_relaxed) | 1;  // a predecessor may have died at an odd number
    change_->store(change, std::memory_order_relaxed);
    return change;
  }
  void finish(u64 change) { change_->store(change + 1, std::memory_order_release); }
  void add_to(std::size_t value, u64 n) {
    values_[value].store(values_[value].load(std::memory_order_relaxed) + n, std::memory_order_release);
  }

  word* change_ = nullptr;
  word* current_ = nullptr;
  word* since_ = nullptr;
  word* values_ = nullptr;
  std::size_t phases_ = 0, counters_ = 0, gauges_ = 0;
};

}  // namespace fw
