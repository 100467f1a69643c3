// Feed: batches ready before they are asked for.
//
// Contract
//   * Buffers are added by the caller and lent out by take(); a lent buffer is not touched until it is released.
//   * With depth 0 take() fills a free buffer itself. With depth > 0 a thread keeps up to `depth` filled ones ready.
//   * take() answers `none` when every buffer is lent out: the caller adds one and asks again. It never waits for a release.
//   * Priorities are posted and applied before the next draw; where a thread draws, posting takes no lock.
//   * An error in the thread is raised by the next take(), unless it is older than that call: then it is tried again first.
//   * Any number of threads may call: they take turns by a lock that no one sleeps with. It is held for one filling at most, and by
//     stop() until the thread has ended.
#pragma once

#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "sampler.hpp"

namespace fw {

template <class P>
class Feed {
 public:
  static constexpr int none = -1, late = -2;
  static constexpr std::size_t max_buffers = 256;

  Feed(Sampler<P>& sampler, std::size_t depth)
      : sampler_(sampler), depth_(depth), most_ready_(depth), ready_(ready_words_), work_(work_words_) {
    ready_.format(0);
    work_.format(0);
  }
  ~Feed() { end(); }  // nobody else has it any more; in a forked child the lock may be held for ever

  void stop() {
    const std::lock_guard turn(turn_);
    end();
  }

  // In a forked child the thread is not there to be joined.
  void forget_thread() {
    if (thread_.joinable()) thread_.detach();
  }

  std::size_t depth() const { return depth_; }
  // Keeps fewer than `depth` ready from now on, or as many again; at least one.
  void keep_ready(std::size_t count) {
    most_ready_.store(std::clamp<std::size_t>(count, 1, std::max<std::size_t>(depth_, 1)));
    work_.add(1);
  }

  // Runs something with the sampler while no other thread fills with it. Only with depth 0.
  template <class Work>
  void alone(Work work) {
    const std::lock_guard turn(turn_);
    work();
  }
  BatchOut& buffer(int index) { return buffers_[std::size_t(index)].out; }

  void add_buffer(const BatchOut& out) {
    const std::size_t n = num_buffers_.load();
    if (n == max_buffers)
      throw Refused("256 batches are in use at once. Drop the batches (and the tensors made from them) that are done with.");
    buffers_[n].out = out;
    buffers_[n].state.store(kFree);
    num_buffers_.store(n + 1);
    work_.add(1);
  }

  template <class Interrupted>
  int take(i64 until_ns, Interrupted interrupted) {
    const u64 ask = asks_.fetch_add(1) + 1;
    for (;;) {
      u64 taken;
      {
        const std::lock_guard turn(turn_);
        if (stopping_.load()) throw Refused("this replay was closed; make another over the same lanes.");
        if (depth_ == 0) return take_filling();
        if (!thread_.joinable()) start();
        taken = taken_.load();
        if (ready_.load() != taken) {
          const int index = take_ready(taken, ask);
          if (index != none) return index;
          continue;
        }
        if (all_lent()) return none;
      }
      const auto is_over = [&] { return stopping_.load() || interrupted(); };
      if (!ready_.wait(taken + 1, until_ns, is_over) && !stopping_.load()) return late;
    }
  }

  void release(int index) {
    buffers_[std::size_t(index)].state.store(kFree);
    work_.add(1);
  }

  // Of a lent buffer. Its rows are not copied: it is filled again only after what was posted before its release is applied.
  void post(int index, std::vector<float> priority) {
    posts_.fetch_add(1);
    if (depth_ == 0) return alone([&] { apply(index, priority); });
    auto* posted = new Posted{index, std::move(priority), nullptr};
    posted->before = posted_.load(std::memory_order_relaxed);
    // release: pairs with the exchange in apply_posted(); what was posted is whole before it can be found.
    while (!posted_.compare_exchange_weak(posted->before, posted, std::memory_order_release)) {
    }
  }

  // Posts that a lent buffer was filled without: its draw does not know of these priorities.
  u64 posts_since(int index) const { return posts_.load() - buffers_[std::size_t(index)].posts; }

 private:
  enum State { kFree, kReady, kLent };
  struct Buffer {
    BatchOut out{};
    std::atomic<State> state{kLent};
    std::exception_ptr error;
    u64 ask = 0;    // the take() that was the newest when the filling began
    u64 posts = 0;  // applied before the filling
  };
  struct Posted {
    int index;
    std::vector<float> priority;
    Posted* before;
  };

  int find_free() const {
    for (std::size_t i = 0; i < num_buffers_.load(); ++i)
      if (buffers_[i].state.load() == kFree) return int(i);
    return none;
  }

  bool all_lent() const {
    for (std::size_t i = 0; i < num_buffers_.load(); ++i)
      if (buffers_[i].state.load() != kLent) return false;
    return true;
  }

  int take_filling() {
    const int index = find_free();
    if (index == none) return none;
    buffers_[std::size_t(index)].posts = applied_;
    sampler_.fill(buffer(index));
    buffers_[std::size_t(index)].state.store(kLent);
    return index;
  }

  // The oldest filled buffer; `none` if its filling failed before this call began, and is tried again now.
  int take_ready(u64 taken, u64 ask) {
    const int index = order_[taken % max_buffers];
    taken_.store(taken + 1);
    Buffer& buffer = buffers_[std::size_t(index)];
    if (!buffer.error) {
      buffer.state.store(kLent);
      work_.add(1);
      return index;
    }
    const std::exception_ptr error = std::exchange(buffer.error, nullptr);
    const bool is_old = buffer.ask < ask;
    release(index);
    if (!is_old) std::rethrow_exception(error);
    return none;
  }

  void end() {
    stopping_.store(true);
    if (thread_.joinable()) {
      work_.add(1);
      thread_.join();
    }
    apply_posted();
  }

  void start() {
    // The thread takes no signals: they belong to the main thread, whose waits they interrupt.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run() {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "fw-prefetch");
#endif
    while (!stopping_.load()) {
      const u64 seen = work_.load();
      const int index = ready_.load() - taken_.load() < most_ready_.load() ? find_free() : none;
      if (index == none) {
        work_.wait(seen + 1, now_ns() + 60'000'000'000, [] { return false; });
        continue;
      }
      Buffer& buffer = buffers_[std::size_t(index)];
      buffer.ask = asks_.load();
      apply_posted();
      buffer.posts = applied_;
      try {
        sampler_.fill(buffer.out);
      } catch (...) {
        buffer.error = std::current_exception();
      }
      const bool failed = bool(buffer.error);
      const u64 before = work_.load();
      buffer.state.store(kReady);
      order_[ready_.load() % max_buffers] = index;
      ready_.add(1);
      // After an error nothing is tried until somebody has been told of it.
      if (failed) work_.wait(before + 1, now_ns() + 60'000'000'000, [] { return false; });
    }
  }

  void apply_posted() {
    Posted* newest = posted_.exchange(nullptr, std::memory_order_acquire);
    Posted* oldest = nullptr;
    while (newest) {  // they were stacked: turn them round, so that the last posted value of a row wins
      Posted* before = newest->before;
      newest->before = oldest;
      oldest = newest;
      newest = before;
    }
    while (oldest) {
      std::unique_ptr<Posted> posted(oldest);
      oldest = posted->before;
      apply(posted->index, posted->priority);
    }
  }

  void apply(int index, const std::vector<float>& priority) {
    const BatchOut& batch = buffer(index);
    ++applied_;
    sampler_.update(batch.lane, batch.row, priority.data(), priority.size());
  }

  Sampler<P>& sampler_;
  const std::size_t depth_;
  std::atomic<std::size_t> most_ready_;
  std::mutex turn_;  // of those who take; with depth 0 also of the sampler
  Buffer buffers_[max_buffers];
  std::atomic<std::size_t> num_buffers_{0};
  int order_[max_buffers] = {};  // filled buffers, oldest first; [taken_, ready_) are waiting
  WordPolicy::word ready_words_[3], work_words_[3];
  Counter<WordPolicy> ready_, work_;
  std::atomic<u64> taken_{0}, asks_{0}, posts_{0};
  u64 applied_ = 0;  // posts; by whoever fills
  std::atomic<Posted*> posted_{nullptr};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace fw
