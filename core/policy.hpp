// How shared words are touched. Everything that crosses a process boundary is a 64-bit word reached through a
// policy, so that one source runs natively, under ThreadSanitizer and under the seeded model checker in tests/.
//
// A policy gives:
//   word                      an atomic 64-bit integer (load, store, fetch_add, compare_exchange_weak)
//   copy_in(to, from, bytes)  private bytes into shared words; each word is stored with release
//   copy_out(to, from, bytes) shared words into private bytes; each word is loaded with acquire
//   sleep(w, seen, until_ns)  sleep while the low half of w equals the low half of `seen`, at most until the monotonic time
//   wake(w)                   wake all who sleep on w
//   now()                     monotonic nanoseconds
//
// Why release and acquire on payload words: a ring (or slot) is overwritten while someone may still read it. The writer
// first announces the overwriting (head, slot mark), then stores the words with release; a reader that met such a word
// with acquire therefore sees the announcement when it looks again, and throws the row away. No bare fence is
// needed, which ThreadSanitizer could not follow.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fw {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i64 = std::int64_t;

static_assert(std::endian::native == std::endian::little, "the low half of a word is its first four bytes");

constexpr std::size_t words_for(std::size_t bytes) { return (bytes + 7) / 8; }

inline i64 now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return i64(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Into the second-level cache: its queue holds three times as many lines in flight as the first level's fill buffers. A gather of
// 256 x 1.4 kB from 700 MB took 32 us with this hint, 41 us with the nearest one, 60 us with none (2-core Xeon, model 207).
inline void prefetch(const void* at) { __builtin_prefetch(at, 0, 1); }
inline void prefetch_near(const void* at) { __builtin_prefetch(at, 0, 3); }
inline void prefetch_to_write(const void* at) { __builtin_prefetch(at, 1, 3); }

// Word by word with release and acquire: right on every machine, and what ThreadSanitizer runs.
struct WordPolicy {
  using word = std::atomic<u64>;
  static_assert(sizeof(word) == 8 && word::is_always_lock_free);

  static void copy_in(word* to, const void* from, std::size_t bytes) {
    const char* source = static_cast<const char*>(from);
    for (; bytes >= 8; bytes -= 8, source += 8, ++to) {
      u64 value;
      std::memcpy(&value, source, 8);
      to->store(value, std::memory_order_release);
    }
    if (bytes) {
      u64 value = 0;
      std::memcpy(&value, source, bytes);
      to->store(value, std::memory_order_release);
    }
  }

  static void copy_out(void* to, const word* from, std::size_t bytes) {
    char* target = static_cast<char*>(to);
    for (; bytes >= 8; bytes -= 8, target += 8, ++from) {
      const u64 value = from->load(std::memory_order_acquire);
      std::memcpy(target, &value, 8);
    }
    if (bytes) {
      const u64 value = from->load(std::memory_order_acquire);
      std::memcpy(target, &value, bytes);
    }
  }

  static i64 now() { return now_ns(); }

  static void sleep(const word* w, u64 seen, i64 until_ns) {
#if defined(__linux__)
    // FUTEX_WAIT_BITSET takes an absolute monotonic time, so an interrupted sleep keeps its deadline.
    timespec until{until_ns / 1'000'000'000, until_ns % 1'000'000'000};
    syscall(SYS_futex, w, FUTEX_WAIT_BITSET, u32(seen), &until, nullptr, FUTEX_BITSET_MATCH_ANY);
#else
    // No futex across processes here: back off from 50 us to 2 ms, one step per call; the caller loops.
    static thread_local i64 pause_ns = 50'000;
    pause_ns = w->load(std::memory_order_acquire) == seen ? std::min<i64>(pause_ns * 2, 2'000'000) : 50'000;
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns, std::max<i64>(until_ns - now_ns(), 0))));
#endif
  }

  static void wake(word* w) {
#if defined(__linux__)
    syscall(SYS_futex, w, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
    (void)w;
#endif
  }
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__)
// x86-64 keeps every load and every ordinary store in order, so wide vector copies are acquire and release already; only
// the compiler has to be held (the empty asm). Not memcpy: for large blocks libc may pick non-temporal stores, which
// the processor does reorder.
struct VectorPolicy : WordPolicy {
  static void copy_in(word* to, const void* from, std::size_t bytes) {
    copy(reinterpret_cast<char*>(to), static_cast<const char*>(from), bytes);
  }
  static void copy_out(void* to, const word* from, std::size_t bytes) {
    copy(static_cast<char*>(to), reinterpret_cast<const char*>(from), bytes);
  }

 private:
  static void hold() { asm volatile("" ::: "memory"); }

  static void copy(char* to, const char* from, std::size_t bytes) {
    // Also hides what the pointers point to: the compiler would warn of the branches that an object is too small for.
    asm volatile("" : "+r"(to), "+r"(from)::"memory");
    if (bytes >= 128) {
      static void (*const wide)(char*, const char*, std::size_t) = __builtin_cpu_supports("avx512f") ? copy_512
                                                                   : __builtin_cpu_supports("avx2")  ? copy_256
                                                                                                     : copy_128;
      wide(to, from, bytes);
    } else if (bytes >= 16) {
      copy_blocks<16>(to, from, bytes);
    } else if (bytes == 8) {
      __builtin_memcpy(to, from, 8);
    } else {
      for (; bytes; --bytes) *to++ = *from++;
    }
    hold();
  }

  // The first and the last block lie anywhere; those between are stored on their boundary, because a store that crosses a
  // cache line costs two. Blocks may overlap: a byte copied twice is still the same byte, or its row is thrown away.
  template <int width>
  [[gnu::always_inline]] static void copy_blocks(char* to, const char* from, std::size_t bytes) {
    typedef u64 Vector __attribute__((vector_size(width), aligned(1), may_alias));
    const auto move = [&](std::size_t at) {
      *reinterpret_cast<Vector*>(to + at) = *reinterpret_cast<const Vector*>(from + at);
      hold();  // also keeps the loop from being turned into a call of memcpy
    };
    move(0);
    for (std::size_t at = width - reinterpret_cast<std::uintptr_t>(to) % width; at + width <= bytes; at += width) move(at);
    move(bytes - width);
  }

  [[gnu::target("avx512f")]] static void copy_512(char* t, const char* f, std::size_t n) { copy_blocks<64>(t, f, n); }
  [[gnu::target("avx2")]] static void copy_256(char* t, const char* f, std::size_t n) { copy_blocks<32>(t, f, n); }
  static void copy_128(char* t, const char* f, std::size_t n) { copy_blocks<16>(t, f, n); }
};
using NativePolicy = VectorPolicy;
#else
using NativePolicy = WordPolicy;
#endif

}  // namespace fw
