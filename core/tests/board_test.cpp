// The board with real threads, and what happens when somebody is lapped or dies.
#include "../board.hpp"

#include <thread>

#include "check.hpp"
#include "content.hpp"

using namespace fw;
using namespace fw::test;

namespace {

using Words = std::vector<WordPolicy::word>;

// One addition a word, about as fast as a copy: a publisher that took long to think would never lap anybody.
u64 weight(u64 version, std::size_t at) { return content(version, 0) + at * 0x9e3779b97f4a7c15u; }

// `into` keeps its room, so that publishing again and again allocates nothing.
const char* weights_of(u64 version, std::size_t bytes, std::vector<u64>& into) {
  into.resize(words_for(bytes));
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = weight(version, i);
  return reinterpret_cast<const char*>(into.data());
}

// Any word that is not of this version: where it is, or -1.
std::ptrdiff_t torn_at(const std::vector<char>& got, u64 version) {
  for (std::size_t at = 0; at < got.size(); at += 8) {
    const u64 value = weight(version, at / 8);
    if (std::memcmp(&got[at], &value, std::min<std::size_t>(8, got.size() - at))) return std::ptrdiff_t(at);
  }
  return -1;
}

template <class P>
void publish_and_read(std::size_t bytes, std::size_t slots, u64 start, i64 for_ns) {
  Words words(Board<P>::num_words(slots, bytes));
  Board<P> board(words.data(), slots, bytes);
  board.format(start);
  std::atomic<bool> stop{false};
  std::atomic<u64> fetched{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&] {
      std::vector<char> got(bytes);
      u64 newest = start, version = 0;
      while (!stop.load()) {
        if (!board.fetch(got.data(), version)) continue;
        CHECK(i64(version - newest) >= 0, "a version went back");
        const std::ptrdiff_t at = torn_at(got, version);
        CHECK(at < 0, "%zu bytes in %zu slots: byte %td of another version", bytes, slots, at);
        newest = version;
        fetched.fetch_add(1, std::memory_order_relaxed);
      }
    });
  std::vector<u64> scratch;
  u64 published = start;
  for (const i64 end = now_ns() + for_ns; now_ns() < end || fetched.load() == 0;) {
    ++published;
    CHECK(board.publish(weights_of(published, bytes, scratch)) == published, "not the next version");
  }
  stop = true;
  for (std::thread& t : readers) t.join();
  std::vector<char> got(bytes);
  u64 version = 0;
  CHECK(board.fetch(got.data(), version) && version == published && torn_at(got, version) < 0, "not the newest at rest");
}

// Publishes again and again while a reader copies: the reader is lapped at every try.
struct LappingPolicy : WordPolicy {
  static inline Board<WordPolicy>* lapped_by = nullptr;
  static inline int copies = 0;
  static void copy_out(void* to, const word* from, std::size_t bytes) {
    WordPolicy::copy_out(to, from, bytes);
    ++copies;
    std::vector<u64> scratch;
    for (int i = 0; i < 3; ++i) lapped_by->publish(weights_of(lapped_by->version() + 1, bytes, scratch));
  }
};

// A publisher that dies half way through its copy.
struct DyingPolicy : WordPolicy {
  struct Death {};
  static void copy_in(word* to, const void* from, std::size_t bytes) {
    WordPolicy::copy_in(to, from, bytes / 2);
    throw Death{};
  }
};

}  // namespace

TEST(board_threads) {
  const i64 for_ns = quick_or_full(40, 400) * 1'000'000ll;
  u64 turn = 0;
  for (const std::size_t bytes : {1, 8, 100, 4099, 100'000}) {
    publish_and_read<NativePolicy>(bytes, 3, near_a_limit(turn++), for_ns);
    publish_and_read<WordPolicy>(bytes, 4, near_a_limit(turn++), for_ns);
  }
}

TEST(board_tries_are_bounded) {
  constexpr std::size_t bytes = 24;
  std::vector<u64> scratch;
  Words words(Board<WordPolicy>::num_words(3, bytes));
  Board<WordPolicy> board(words.data(), 3, bytes);
  Board<LappingPolicy> lapped(words.data(), 3, bytes);
  board.format(0);
  std::vector<char> got(bytes);
  u64 version = 77;
  CHECK(!lapped.fetch(got.data(), version) && LappingPolicy::copies == 0, "nothing was published yet");
  board.publish(weights_of(1, bytes, scratch));
  LappingPolicy::lapped_by = &board;
  CHECK(!lapped.fetch(got.data(), version), "a lapped fetch has nothing to give");
  CHECK(LappingPolicy::copies == Board<WordPolicy>::max_tries, "%d tries", LappingPolicy::copies);
  CHECK(version == 77, "the version of a fetch that failed was touched");
}

TEST(board_outlives_its_publisher) {
  constexpr std::size_t bytes = 64;
  std::vector<u64> scratch;
  for (u64 turn = 0; turn < 3; ++turn)
    for (u64 before = 0; before < 5; ++before) {
      const u64 start = near_a_limit(turn);
      Words words(Board<WordPolicy>::num_words(3, bytes));
      Board<WordPolicy> board(words.data(), 3, bytes);
      board.format(start);
      for (u64 v = 1; v <= before; ++v) board.publish(weights_of(start + v, bytes, scratch));
      try {
        Board<DyingPolicy>(words.data(), 3, bytes).publish(weights_of(12345, bytes, scratch));
      } catch (DyingPolicy::Death) {
      }
      std::vector<char> got(bytes);
      u64 version = 0;
      const bool is_there = board.fetch(got.data(), version);
      CHECK(is_there == (before > 0), "the newest whole version is there if there was one");
      if (is_there) CHECK(version == start + before && torn_at(got, version) < 0, "a dead publisher changed a version");
      CHECK(board.publish(weights_of(start + before + 1, bytes, scratch)) == start + before + 1, "a version was skipped");
      CHECK(board.fetch(got.data(), version) && torn_at(got, version) < 0, "the successor's version is not whole");
    }
}
