// The board and the ledger on the model machine: what comes out whole is of one version, of one moment.
#include "../board.hpp"
#include "../ledger.hpp"
#include "scenario.hpp"

namespace fw::model {
namespace {

enum : Role { kVersion = 1, kBegin, kEnd, kData };

constexpr std::size_t slots = 3, bytes = 20, num_words = 3;

struct World {
  u64 start;
  Board<ModelPolicy> board;

  explicit World(u64 seed) : start(near_a_limit(seed)), board(words.data(), slots, bytes) {
    board.format(start);
    machine.name(kVersion, &words[1]);
    for (std::size_t slot = 0; slot < slots; ++slot) {  // a line of two marks, then the data on lines of their own
      const Word* at = words.data() + 8 + slot * 16;
      machine.name(kBegin, at);
      machine.name(kEnd, at + 1);
      machine.name(kData, at + 8, num_words);
    }
  }

  // `author` sets the bytes of two publishers apart; the version alone does not say whose they are.
  void publish(int times, u64 author) {
    while (times--) {
      const u64 version = board.version() + 1;
      u64 data[num_words];
      for (u64 i = 0; i < num_words; ++i) data[i] = content(version, i) << 8 | author;
      machine.expect(board.publish(data) == version, "the version is not the next one");
    }
  }

  bool fetch(u64& newest) {
    u64 data[num_words] = {}, version = 0;
    const bool is_there = board.fetch(data, version);
    if (!is_there) return false;
    machine.expect(i64(version - newest) >= 0, "version %lx came after %lx", version, newest);
    newest = version;
    const u64 author = data[0] & 0xff;
    for (u64 i = 0; i < num_words; ++i) {
      const u64 kept = i + 1 == num_words ? 0xffffffff : ~u64(0);  // 20 bytes end in the middle of a word
      machine.expect(data[i] == ((content(version, i) << 8 | author) & kept), "version %lx: bytes of another", version);
    }
    return true;
  }

  void read(int times) {
    u64 newest = start;
    while (times--) {
      if (fetch(newest)) happened(board.version() != newest);
    }
  }

  void expect_newest(u64 version) {
    u64 newest = start;
    machine.expect(fetch(newest), "nothing could be fetched at rest");
    machine.expect(newest == version, "version %lx at rest, not %lx", newest, version);
  }
};

const Scenario publisher{"board/publisher-and-readers", "newest versions fetched", "overtaken meanwhile", [](u64 seed) {
  World world(seed);
  machine.spawn([&] { world.publish(7, 1); });
  machine.spawn([&] { world.read(3); });
  machine.spawn([&] {
    machine.expect(world.board.wait_for(world.start + 1, no_deadline, never), "wait_for() gave up without a deadline");
    world.read(2);
  });
  if (machine.run()) world.expect_newest(world.start + 7);
}};

// A publisher is killed anywhere and reaped; its successor goes on from the newest whole version.
const Scenario replaced{"board/publisher-replaced", "newest versions fetched", "overtaken meanwhile", [](u64 seed) {
  World world(seed);
  u64 taken_over = 0;
  const int victim = machine.spawn([&] { world.publish(4, 1); });
  machine.spawn([&] {
    for (u64 delay = machine.below(60); delay--;) machine.step();
    machine.kill(victim);
    machine.learn_from(victim);
    taken_over = world.board.version();
    world.publish(4, 2);
  });
  machine.spawn([&] { world.read(4); });
  if (machine.run()) world.expect_newest(taken_over + 4);
}};

const Planted board_bugs[] = {
    {"weights are stored relaxed", publisher, {{{kData, kStore, Effect::relax}}}},
    {"weights are loaded relaxed", publisher, {{{kData, kLoad, Effect::relax}}}},
    {"the begin mark is not looked at after the copy", publisher, {{{kBegin, kLoad, Effect::blind, kEnd}}}},
    {"the begin mark is not stored", publisher, {{{kBegin, kStore, Effect::drop}}}},
    {"the end mark is not stored", publisher, {{{kEnd, kStore, Effect::drop}}}},
    {"end mark and version are both relaxed",
     publisher,
     {{{kEnd, kStore, Effect::relax}, {kVersion, kRmw | kLoad, Effect::relax}}}},
};

// --- ledger -----------------------------------------------------------------------------------------------------------

enum : Role { kChange = 1, kValue };

constexpr std::size_t num_values = 5;  // two phases, two counters, a gauge

// What holds at every moment: the second count follows the first, the gauge follows both, and all time has one phase.
void check_moment(const u64* now, u64& time_before, i64 begin) {
  machine.expect(now[2] == now[3] || now[2] == now[3] + 5, "counts %lu and %lu are of no moment", now[2], now[3]);
  const u64 gauge = u64(std::bit_cast<double>(now[4]));
  machine.expect(gauge * 5 <= now[3] && now[3] <= gauge * 5 + 5, "gauge %lu, count %lu are of no moment", gauge, now[3]);
  const u64 time = now[0] + now[1];
  machine.expect(i64(time) <= now_ns() - begin, "phases of %lu ns, longer than the run", time);
  machine.expect(time >= time_before, "time went back from %lu to %lu", time_before, time);
  time_before = time;
}

const Scenario ledger{"ledger/writer-and-readers", "snapshots in rest", "snapshots under way", [](u64) {
  Ledger<ModelPolicy> ledger(words.data(), 2, 2, 1);
  machine.name(kChange, &words[0]);
  machine.name(kValue, &words[1], 2);
  machine.name(kValue, &words[8], num_values);
  bool is_through = false;
  const i64 begin = now_ns();
  ledger.start(0);
  machine.spawn([&] {
    for (int i = 1; i <= 3; ++i) {
      ledger.count(0, 5);
      ledger.count(1, 5);
      ledger.set(0, i);
      ledger.enter(std::size_t(i % 2));
    }
    is_through = true;
  });
  for (int reader = 0; reader < 2; ++reader)
    machine.spawn([&] {
      u64 now[num_values], time = 0;
      for (int i = 0; i < 3; ++i) {
        happened(!is_through);
        machine.expect(ledger.snapshot(now), "no whole snapshot in 1000 tries");
        check_moment(now, time, begin);
      }
    });
  machine.run();
}};

const Planted ledger_bugs[] = {
    {"values are stored relaxed", ledger, {{{kValue, kStore, Effect::relax}}}},
    {"values are loaded relaxed", ledger, {{{kValue, kLoad, Effect::relax}}}},
    {"the change number is not looked at again", ledger, {{{kChange, kLoad, Effect::blind, kChange}}}},
    {"the change number is stored relaxed", ledger, {{{kChange, kStore, Effect::relax}}}},
};

}  // namespace
}  // namespace fw::model
