// Shows that the sanitizers see: `canary sound` must pass, each other case must be stopped by the sanitizer it was built
// with. canary.sh runs them.
#include <thread>

#include "../lanes.hpp"

using namespace fw;

namespace {

// Rows as plain memory. That is sound as long as no row is overwritten: then only the head orders writer and reader.
struct PlainCopyPolicy : WordPolicy {
  static void copy_in(word* to, const void* from, std::size_t bytes) {
    std::memcpy(static_cast<void*>(to), from, bytes);
  }
  static void copy_out(void* to, const word* from, std::size_t bytes) {
    std::memcpy(to, static_cast<const void*>(from), bytes);
  }
};

// The same with every order taken away.
struct RelaxedPolicy : PlainCopyPolicy {
  class word {
   public:
    u64 load(std::memory_order) const { return value_.load(std::memory_order_relaxed); }
    void store(u64 value, std::memory_order) { value_.store(value, std::memory_order_relaxed); }
    u64 fetch_add(u64 n, std::memory_order) { return value_.fetch_add(n, std::memory_order_relaxed); }

   private:
    std::atomic<u64> value_{0};
  };
  static void copy_in(word* to, const void* from, std::size_t bytes) {
    std::memcpy(static_cast<void*>(to), from, bytes);
  }
  static void copy_out(void* to, const word* from, std::size_t bytes) {
    std::memcpy(to, static_cast<const void*>(from), bytes);
  }
};

constexpr u64 num_rows = 100;

template <class P>
struct World {
  std::vector<Field> fields{{0, 64, true}};
  LaneShape shape{1, num_rows + 1, 8};
  std::vector<typename P::word> words = std::vector<typename P::word>(Lanes<P>::num_words(shape));
  Lanes<P> lanes{words.data(), shape};

  bool read_while_written() {
    lanes.format(0);
    const u64 epoch = lanes.open(0);
    std::thread writer([&] {
      for (u64 row = 0; row < num_rows; ++row) {
        const u64 data[8] = {row, row, row, row, row, row, row, row};
        const char* sources[] = {reinterpret_cast<const char*>(data)};
        lanes.append(0, epoch, {0, 0, row}, 0, -1, fields, sources);
      }
    });
    bool is_whole = true;
    for (u64 row = 0; row < num_rows; ++row) {
      while (lanes.head(0) <= row) std::this_thread::yield();
      u64 data[8];
      lanes.copy_field(data, 0, lanes.slot_of(0, row), fields[0]);
      for (const u64 word : data) is_whole &= word == row;
    }
    writer.join();
    return is_whole;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  World<PlainCopyPolicy> world;
  if (wanted == "sound") return world.read_while_written() ? 0 : 1;
  if (wanted == "race") return World<RelaxedPolicy>().read_while_written() ? 0 : 1;
  if (wanted == "overflow") {  // one slot further than the lane has
    char data[64];
    world.lanes.copy_field(data, 0, num_rows + 1, world.fields[0]);
    return data[0];
  }
  if (wanted == "undefined") {
    volatile i64 largest = INT64_MAX;
    return int(largest + argc);
  }
  return 2;
}
