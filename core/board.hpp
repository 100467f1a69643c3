// Board: versioned weights from one publisher to any number of readers.
//
// Contract
//   * publish() copies the bytes once into the next of `slots` >= 3 slots and never waits, whatever readers do.
//   * fetch() gives the newest version's bytes, whole, and says which version they are. It retries a bounded number of
//     times when the publisher laps it, and then reports that it got nothing; the caller keeps what it had.
//   * A version number is never returned with another version's bytes: a slot is marked with its coming version at
//     `begin` before its words change and at `end` after; a reader checks `end` before its copy and `begin` after it.
//   * One publisher at a time. One that died in the middle leaves a slot no version points to; its successor goes on from
//     the newest whole version, so versions never go back.
//   * Versions may start anywhere and stay right across 2^64.
#pragma once

#include "fault_points.hpp"
#include "waits.hpp"

namespace fw {

template <class P>
class Board {
 public:
  using word = typename P::word;
  static constexpr int max_tries = 8;

  static std::size_t num_words(std::size_t slots, std::size_t bytes) {
    return header_words + slots * (slot_header_words + padded(bytes));
  }

  Board() = default;
  Board(word* words, std::size_t slots, std::size_t bytes)
      : base_(words), version_(words + 1), slots_words_(words + header_words), slots_(slots), bytes_(bytes) {}

  void format(u64 first_version) {
    base_->store(first_version, std::memory_order_relaxed);
    for (std::size_t i = 0; i < slots_; ++i) {
      // No version of slot i is ever equal to its neighbour's, so these marks match nothing that is asked for.
      begin(first_version + i)->store(first_version + i + 1, std::memory_order_relaxed);
      end(first_version + i)->store(first_version + i + 1, std::memory_order_relaxed);
    }
    version_.format(first_version);
  }

  u64 version() const { return version_.load(); }
  u64 first_version() const { return base_->load(std::memory_order_relaxed); }

  u64 publish(const void* bytes) {
    const u64 version = version_.load() + 1;
    begin(version)->store(version, std::memory_order_relaxed);  // ordered before the words by their release stores
    reach(Point::publish_begin);
    P::copy_in(data(version), bytes, bytes_);
    end(version)->store(version, std::memory_order_release);  // pairs with fetch(): the words are there before the mark
    reach(Point::publish_end);
    version_.add(1);
    return version;
  }

  // Whether `into` now holds `version`; false when nothing was published yet or each try was lapped.
  bool fetch(void* into, u64& version) const {
    for (int i = 0; i < max_tries; ++i) {
      const u64 newest = version_.load();
      if (newest == first_version()) return false;
      if (end(newest)->load(std::memory_order_acquire) != newest) continue;
      P::copy_out(into, data(newest), bytes_);
      // The words were loaded with acquire: had one been of a later version, its begin mark would be visible here.
      if (begin(newest)->load(std::memory_order_acquire) != newest) continue;
      version = newest;
      return true;
    }
    return false;
  }

  template <class Interrupted>
  bool wait_for(u64 version, i64 until_ns, Interrupted interrupted) const {
    return version_.wait(version, until_ns, interrupted);
  }

 private:
  static constexpr std::size_t header_words = 8;
  static constexpr std::size_t slot_header_words = 8;
  static std::size_t padded(std::size_t bytes) { return (words_for(bytes) + 7) / 8 * 8; }

  word* slot(u64 version) const {
    const u64 index = (version - base_->load(std::memory_order_relaxed)) % slots_;
    return slots_words_ + index * (slot_header_words + padded(bytes_));
  }
  word* begin(u64 version) const { return slot(version); }
  word* end(u64 version) const { return slot(version) + 1; }
  word* data(u64 version) const { return slot(version) + slot_header_words; }

  word* base_ = nullptr;
  Counter<P> version_;
  word* slots_words_ = nullptr;
  std::size_t slots_ = 0, bytes_ = 0;
};

}  // namespace fw
