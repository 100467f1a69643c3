// Model: a machine with weak memory, on which the shipped templates run as they are.
//
// Contract
//   * A word keeps every value ever stored to it. A thread has a view: per word, the oldest store it may still read. A
//     load returns any store from there on, picked by the seed. So a missing release or acquire shows on x86 too.
//   * A store leaves a view for those who acquire it: the thread's whole view if it is a release, only itself if relaxed.
//     A read-modify-write reads the newest store and hands its view on (release sequence).
//   * seq_cst: an operation sees its word at least as new as any earlier seq_cst operation on that word left it. That is
//     what C++20 gives when the total order is the order of execution, and no more: it is no fence for other words.
//   * sleep() and wake() are a futex: wake() reaches whoever sleeps, and whoever comes to sleep later sees what the waker
//     saw. Time stands still.
//   * Stores take their place in a word's order as they execute, and no load waits for a later store: outcomes that need
//     one of these (two writers of one word, load buffering) are not met.
//
// Rules plant bugs: they weaken the operations on words of one role, without a change to the code under test.
#pragma once

#include "../policy.hpp"
#include "fibers.hpp"

namespace fw::model {

using Order = std::memory_order;

constexpr int max_words = 64;   // a view is one cache line
constexpr int max_stores = 64;  // of one word in one schedule

enum Kind : u32 { kLoad = 1, kStore = 2, kRmw = 4 };

// What a word is for, as rules name it: "head", "payload". Numbered by each scenario; 0 is all the rest.
using Role = int;
constexpr int max_roles = 8;

enum class Effect {
  relax,   // the operation loses its order
  not_sc,  // seq_cst becomes acquire and release
  drop,    // a store or read-modify-write pretends to happen
  blind,   // a load answers what its thread last read or wrote in role `as`: a check that is left out
};

struct Rule {
  Role role;
  u32 kinds;
  Effect effect;
  Role as = 0;
};

// What a planted bug changes. The shipped code runs with an empty one.
struct Plant {
  std::vector<Rule> rules = {};
  int woken = max_words;           // threads that a wake() reaches at most
  bool sleeps_unchecked = false;   // the futex does not compare the word before it sleeps
  bool reads_unchecked = false;    // a reader trusts what it copied
  bool trusts_one_more = false;    // a reader trusts the row that is being overwritten
};

struct alignas(64) View {
  std::array<std::uint8_t, max_words> at{};
  void join(const View& other) {
    for (int i = 0; i < max_words; ++i) at[i] = std::max(at[i], other.at[i]);
  }
  void raise(int word, int store) { at[word] = std::max(at[word], std::uint8_t(store)); }
};

class Model : public Fibers {
 public:
  Plant plant;
  bool is_traced = false;

  void reset(u64 seed) {
    Fibers::reset(seed);
    latest_.fill(0);
    role_.fill(0);
    sc_ = futex_ = {};
    for (auto& stores : stores_) stores[0] = {};
    minds_[0] = {};
  }

  void name(Role role, const void* first, int count = 1);

  // The child starts with all that its parent knows.
  int spawn(std::function<void()> body) {
    const int id = Fibers::spawn(std::move(body));
    minds_[id] = {};
    minds_[id].view = me().view;
    return id;
  }

  bool run() {
    const bool passed = Fibers::run();
    for (int i = 1; i < num_threads(); ++i) learn_from(i);
    return passed;
  }

  // What the parent of a reaped process knows: all that the process did.
  void learn_from(int thread) { me().view.join(minds_[thread].view); }

  // --- the policy's operations --------------------------------------------------------------------------------------

  u64 load(int word, Order order) {
    step();
    if (const Rule* rule = rule_for(word, kLoad)) {
      if (rule->effect == Effect::blind && me().has_last[rule->as]) return me().last[rule->as];
      order = weakened(*rule, order);
    }
    if (order == Order::seq_cst) me().view.raise(word, sc_.at[word]);
    // Half of the loads see the newest store, so that loops come to an end.
    return take(word, below(2) ? latest_[word] : any_visible(word), order, "load");
  }

  void store(int word, u64 value, Order order) {
    step();
    const Rule* rule = rule_for(word, kStore);
    if (rule && rule->effect == Effect::drop) return;
    put(word, value, rule ? weakened(*rule, order) : order, nullptr, "store");
  }

  u64 fetch_add(int word, u64 n, Order order) {
    step();
    const u64 old = stores_[word][latest_[word]].value;
    modify(word, old + n, order, "add");
    return old;
  }

  // Weak: may fail for no reason, and what a failure reads may be old.
  bool compare_exchange(int word, u64& expected, u64 desired, Order order) {
    step();
    if (stores_[word][latest_[word]].value != expected || below(8) == 0) {
      expected = load(word, order);
      return false;
    }
    modify(word, desired, order, "exchange");
    return true;
  }

  void sleep(int word, u64 seen) {
    step();
    me().view.raise(word, futex_.at[word]);
    const int at = any_visible(word);
    trace("sleep", word, at);
    if (plant.sleeps_unchecked || u32(stores_[word][at].value) == u32(seen)) sleep_on(word);
  }

  void wake(int word) {
    step();
    trace("wake", word, latest_[word]);
    futex_.raise(word, me().view.at[word]);
    Fibers::wake(word, plant.woken);
  }

 private:
  struct Store {
    u64 value = 0;
    View seen;  // what an acquiring load of this store learns
  };
  struct Mind {
    View view;
    std::array<u64, max_roles> last{};
    std::array<bool, max_roles> has_last{};
  };

  static bool acquires(Order o) { return o != Order::relaxed && o != Order::release; }
  static bool releases(Order o) { return o == Order::release || o == Order::acq_rel || o == Order::seq_cst; }

  Mind& me() { return minds_[running()]; }

  // Rules hold for the threads, not for the set-up before them and the look at the outcome after them.
  const Rule* rule_for(int word, Kind kind) const {
    if (is_running())
      for (const Rule& rule : plant.rules)
        if (rule.role == role_[word] && rule.kinds & kind) return &rule;
    return nullptr;
  }
  static Order weakened(const Rule& rule, Order order) {
    if (rule.effect == Effect::relax) return Order::relaxed;
    return rule.effect == Effect::not_sc && order == Order::seq_cst ? Order::acq_rel : order;
  }

  int any_visible(int word) {
    const int oldest = me().view.at[word];
    return oldest + int(below(u64(latest_[word] - oldest + 1)));
  }

  u64 take(int word, int at, Order order, const char* what) {
    me().view.at[word] = std::uint8_t(at);
    if (acquires(order)) me().view.join(stores_[word][at].seen);
    note(word, at, order, what);
    return stores_[word][at].value;
  }

  void modify(int word, u64 value, Order order, const char* what) {
    const Rule* rule = rule_for(word, kRmw);
    if (rule) order = weakened(*rule, order);
    const int read = latest_[word];
    take(word, read, order, what);
    if (!rule || rule->effect != Effect::drop) put(word, value, order, &stores_[word][read].seen, what);
  }

  void put(int word, u64 value, Order order, const View* continued, const char* what) {
    if (latest_[word] + 1 == max_stores) give_up("more than max_stores stores to one word");
    const int at = ++latest_[word];
    me().view.at[word] = std::uint8_t(at);
    Store& store = stores_[word][at];
    store.value = value;
    store.seen = releases(order) ? me().view : View{};
    store.seen.at[word] = std::uint8_t(at);
    if (continued) store.seen.join(*continued);
    note(word, at, order, what);
  }

  void note(int word, int at, Order order, const char* what) {
    if (order == Order::seq_cst) sc_.raise(word, at);
    me().last[role_[word]] = stores_[word][at].value;
    me().has_last[role_[word]] = true;
    trace(what, word, at);
  }

  void trace(const char* what, int word, int at) const {
    if (is_traced)
      std::printf("  thread %d %-8s word %2d (role %d): %016lx, store %d of %d\n", running(), what, word, role_[word],
                  stores_[word][at].value, at, int(latest_[word]));
  }

  std::array<Mind, max_threads> minds_;
  std::array<std::array<Store, max_stores>, max_words> stores_;
  std::array<std::uint8_t, max_words> latest_;
  std::array<Role, max_words> role_;
  View sc_, futex_;  // per word: the newest store that a seq_cst operation, or a waker, has met
};

inline Model machine;

// Holds nothing: its address says which word of the machine it is, so that pointers to words work as they do natively.
class Word {
 public:
  u64 load(Order order) const { return machine.load(index(), order); }
  void store(u64 value, Order order) { machine.store(index(), value, order); }
  u64 fetch_add(u64 n, Order order) { return machine.fetch_add(index(), n, order); }
  bool compare_exchange_weak(u64& expected, u64 desired, Order order) {
    return machine.compare_exchange(index(), expected, desired, order);
  }
  int index() const;

 private:
  [[maybe_unused]] u64 size_;
};
static_assert(sizeof(Word) == sizeof(u64));

inline std::array<Word, max_words> words;

inline int Word::index() const {
  const std::ptrdiff_t i = this - words.data();
  machine.expect(i >= 0 && i < max_words, "word %td is outside of the segment", i);
  return int(i);
}

inline void Model::name(Role role, const void* first, int count) {
  std::fill_n(role_.begin() + static_cast<const Word*>(first)->index(), count, role);
}

struct ModelPolicy {
  using word = Word;

  // Up or down, as the seed says: the native copy promises no order among the words of one copy.
  template <class Each>
  static void each_word(std::size_t bytes, Each each) {
    const std::size_t count = words_for(bytes);
    const bool is_down = machine.below(2);
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t i = is_down ? count - 1 - k : k;
      each(i, std::min<std::size_t>(8, bytes - i * 8));
    }
  }
  static void copy_in(word* to, const void* from, std::size_t bytes) {
    each_word(bytes, [&](std::size_t i, std::size_t size) {
      u64 value = 0;
      std::memcpy(&value, static_cast<const char*>(from) + i * 8, size);
      to[i].store(value, Order::release);
    });
  }
  static void copy_out(void* to, const word* from, std::size_t bytes) {
    each_word(bytes, [&](std::size_t i, std::size_t size) {
      const u64 value = from[i].load(Order::acquire);
      std::memcpy(static_cast<char*>(to) + i * 8, &value, size);
    });
  }

  static i64 now() { return 0; }
  static void sleep(const word* w, u64 seen, i64) { machine.sleep(w->index(), seen); }
  static void wake(word* w) { machine.wake(w->index()); }
};

}  // namespace fw::model
