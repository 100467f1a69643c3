// Fibers: threads that take turns as a seed says.
//
// Contract
//   * A thread goes on until it calls step() or sleep_on(), or ends; then the seed picks who is next. Same seed, same
//     schedule, to the last step: a failure is replayed from its number alone.
//   * Some seeds switch at every step, others leave a thread alone for long: short races and long delays are both met.
//   * A thread asleep while nobody is left to wake it has lost a wake-up: the schedule fails.
//   * After a failure, and after kill(), a thread's stack is left as it is: bodies must own nothing that has a destructor
//     across a step. Thread 0 is the test itself, before the others run and after them.
#pragma once

#include <ucontext.h>

#include <array>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace fw::model {

class Fibers {
 public:
  static constexpr int max_threads = 8;
  static constexpr int max_steps = 10'000;  // a schedule takes some 200; so many mean that a thread spins for ever

  Fibers() {
    for (Thread& t : threads_) t.stack.resize(64 << 10);
  }

  void reset(std::uint64_t seed) {
    random_ = seed * 0x9e3779b97f4a7c15u | 1;
    error_.clear();
    num_threads_ = 1;
    running_ = steps_ = 0;
    is_running_ = sleeps_end = false;
    for (int i = 0; i < 4; ++i) below(2);  // the first draws of neighbouring seeds are alike
    patience_ = 1u << below(5);
  }

  std::uint64_t below(std::uint64_t n) {  // xorshift64*
    random_ ^= random_ >> 12, random_ ^= random_ << 25, random_ ^= random_ >> 27;
    return ((random_ * 0x2545f4914f6cdd1du) >> 32) % n;
  }

  int spawn(std::function<void()> body) {
    if (num_threads_ == max_threads) give_up("more than max_threads threads");
    Thread& t = threads_[num_threads_];
    t.state = State::ready;
    t.body = std::move(body);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = t.stack.size();
    t.context.uc_link = nullptr;
    current_ = this;
    makecontext(&t.context, &Fibers::enter, 0);
    return num_threads_++;
  }

  // Runs the threads to their end; false if something failed.
  bool run() {
    is_running_ = true;
    go_to(pick_ready());
    is_running_ = false;
    return error_.empty();
  }

  // A point at which another thread may go on.
  void step() {
    if (!is_running_) return;
    if (++steps_ > max_steps) fail("does not come to an end");
    if (below(patience_) == 0) go_to(pick_ready());
  }

  void sleep_on(int key) {
    threads_[running_].state = State::asleep;
    threads_[running_].asleep_on = key;
    go_to(pick_ready());
  }

  void wake(int key, int at_most) {
    for (int i = 1; i < num_threads_ && at_most; ++i)
      if (threads_[i].state == State::asleep && threads_[i].asleep_on == key) threads_[i].state = State::ready, --at_most;
  }

  void kill(int thread) { threads_[thread].state = State::gone; }

  __attribute__((format(printf, 3, 4))) void expect(bool holds, const char* what, ...) {
    if (holds) return;
    char text[300];
    va_list arguments;
    va_start(arguments, what);
    std::vsnprintf(text, sizeof text, what, arguments);
    va_end(arguments);
    fail(text);
  }

  int running() const { return running_; }
  int num_threads() const { return num_threads_; }
  bool is_running() const { return is_running_; }
  const std::string& error() const { return error_; }

  // Set by scenarios that kill a waker: when all are asleep, their deadlines pass.
  bool sleeps_end = false;

 protected:
  [[noreturn]] static void give_up(const char* why) {
    std::fprintf(stderr, "the scenario is too large for the model: %s\n", why);
    std::abort();
  }

 private:
  enum class State { ready, asleep, gone };
  struct Thread {
    State state = State::gone;
    int asleep_on = 0;
    std::function<void()> body;
    std::vector<char> stack;
    ucontext_t context;
  };

  static void enter() {
    Fibers& self = *current_;
    Thread& me = self.threads_[self.running_];
    me.body();
    me.state = State::gone;
    self.go_to(self.pick_ready());
  }

  // A thread that can go on; 0, back to run(), when all are through or none ever will be.
  int pick_ready() {
    int ready[max_threads], count = 0, asleep = 0;
    for (int i = 1; i < num_threads_; ++i) {
      if (threads_[i].state == State::ready) ready[count++] = i;
      if (threads_[i].state == State::asleep) asleep = i;
    }
    if (count) return ready[below(std::uint64_t(count))];
    if (!asleep) return 0;
    if (!sleeps_end) {
      if (error_.empty()) error_ = "lost wake-up: thread " + std::to_string(asleep) + " sleeps and nobody can wake it";
      return 0;
    }
    threads_[asleep].state = State::ready;
    return asleep;
  }

  void go_to(int next) {
    const int from = running_;
    running_ = next;
    if (next != from) swapcontext(&threads_[from].context, &threads_[next].context);
  }

  void fail(const char* why) {
    if (error_.empty()) error_ = why;
    if (is_running_) go_to(0);
  }

  static inline Fibers* current_ = nullptr;
  std::uint64_t random_ = 1, patience_ = 1;
  std::string error_;
  bool is_running_ = false;
  int num_threads_ = 1, running_ = 0, steps_ = 0;
  std::array<Thread, max_threads> threads_;
};

}  // namespace fw::model
