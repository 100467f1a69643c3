// The counter on the model machine: nobody sleeps for ever, and nobody is through before the count is there.
#include "../waits.hpp"
#include "scenario.hpp"

namespace fw::model {
namespace {

enum : Role { kCount = 1, kWakeAt, kRound };

Counter<ModelPolicy> make_counter(u64 seed) {
  Counter<ModelPolicy> counter(words.data());
  counter.format(near_a_limit(seed));
  words[2].store(near_a_limit(seed / 3), Order::relaxed);  // the round crosses the limits too: its low half is the futex
  machine.name(kCount, &words[0]);
  machine.name(kWakeAt, &words[1]);
  machine.name(kRound, &words[2]);
  return counter;
}

void wait_for(const Counter<ModelPolicy>& counter, u64 target) {
  happened(i64(counter.load() - target) < 0);
  machine.expect(counter.wait(target, no_deadline, never), "wait() gave up without a deadline");
  const u64 count = counter.load();
  machine.expect(i64(count - target) >= 0, "wait() for %lx returned at %lx", target, count);
}

// Two adders, two waiters with different targets, of which one comes back for more.
const Scenario adders_and_waiters{"counter/adders-and-waiters", "waits already over", "waits ahead", [](u64 seed) {
  auto counter = make_counter(seed);
  const u64 start = near_a_limit(seed);
  for (int i = 0; i < 2; ++i)
    machine.spawn([&] {
      counter.add(1);
      counter.add(2);
    });
  machine.spawn([&] { wait_for(counter, start + 3); });
  machine.spawn([&] {
    wait_for(counter, start + 1);
    wait_for(counter, start + 6);
  });
  if (machine.run()) machine.expect(counter.load() == start + 6, "an addition was lost");
}};

// Each waiter's end is what the next one waits for: a wish that covers up an earlier one stops the chain.
const Scenario chain{"counter/chain", "waits already over", "waits ahead", [](u64 seed) {
  auto counter = make_counter(seed);
  const u64 start = near_a_limit(seed);
  for (u64 link = 3; link >= 1; --link)
    machine.spawn([&, link] {
      wait_for(counter, start + link);
      counter.add(1);
    });
  machine.spawn([&] { counter.add(1); });
  if (machine.run()) machine.expect(counter.load() == start + 4, "an addition was lost");
}};

// A waiter that gives up at once leaves its wish behind; it may cost a needless wake-up, never a missed one.
const Scenario one_gives_up{"counter/one-gives-up", "waits already over", "waits ahead", [](u64 seed) {
  auto counter = make_counter(seed);
  const u64 start = near_a_limit(seed);
  machine.spawn([&] {
    counter.add(1);
    counter.add(1);
  });
  machine.spawn([&] {
    const bool is_reached = counter.wait(start + 2, 0, never);
    machine.expect(!is_reached || counter.load() == start + 2, "wait() was through before the count");
  });
  machine.spawn([&] { counter.wait(start + 1, no_deadline, [] { return true; }); });
  machine.spawn([&] { wait_for(counter, start + 2); });
  machine.run();
}};

// An adder that is killed anywhere may take a wake-up with it; then the end of a sleep (a second at most) brings it back.
const Scenario adder_killed{"counter/adder-killed", "waits already over", "waits ahead", [](u64 seed) {
  auto counter = make_counter(seed);
  const u64 start = near_a_limit(seed);
  machine.sleeps_end = true;
  const int victim = machine.spawn([&] {
    counter.add(1);
    counter.add(1);
  });
  machine.spawn([&] {
    for (u64 delay = machine.below(20); delay--;) machine.step();
    machine.kill(victim);
    counter.add(2);
  });
  machine.spawn([&] { wait_for(counter, start + 1); });
  machine.spawn([&] { wait_for(counter, start + 2); });
  machine.run();
}};

const Planted bugs[] = {
    {"a wake-up that wakes nobody", adders_and_waiters, {.woken = 0}},
    {"a wake-up that wakes one of two", adders_and_waiters, {.woken = 1}},
    {"a futex that sleeps without comparing", adders_and_waiters, {.sleeps_unchecked = true}},
    {"the round is not moved on", adders_and_waiters, {{{kRound, kRmw, Effect::drop}}}},
    {"the wish of a waiter is not stored", adders_and_waiters, {{{kWakeAt, kRmw, Effect::drop}}}},
    {"add() looks for wishes without seq_cst", adders_and_waiters, {{{kWakeAt, kLoad, Effect::not_sc}}}},
    {"wait() looks at the count without seq_cst", adders_and_waiters, {{{kCount, kLoad, Effect::not_sc}}}},
};

}  // namespace
}  // namespace fw::model
