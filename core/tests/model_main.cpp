// Runs every scenario over many schedules, and looks for every planted bug.
//
//   model --schedules 100000      schedules per scenario, and at most as many per planted bug
//   model --only NAME --seed S    replays one schedule and prints each of its operations
#include <chrono>

#include "scenario.hpp"

using namespace fw;
using namespace fw::model;

static bool passes(const Scenario& scenario, u64 seed) {
  machine.reset(seed);
  scenario.play(seed);
  return machine.error().empty();
}

// The first seed that fails, or 0.
static u64 explore(const Scenario& scenario, const Plant& plant, u64 schedules) {
  machine.plant = plant;
  num_usual = num_rare = 0;
  for (u64 seed = 1; seed <= schedules; ++seed)
    if (!passes(scenario, seed)) return seed;
  return 0;
}

static bool run_scenario(const Scenario& s, u64 schedules, const char* program) {
  const auto begin = std::chrono::steady_clock::now();
  const u64 seed = explore(s, {}, schedules);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const bool is_blind = !seed && (!num_usual || !num_rare);
  std::printf("%s model %s: %lu schedules in %.1f s, %lu %s, %lu %s\n", seed || is_blind ? "FAILED" : "ok", s.name,
              seed ? seed : schedules, seconds, num_usual, s.usual, num_rare, s.rare);
  if (seed)
    std::printf("  seed %lu: %s\n  replay: %s --only '%s' --seed %lu\n", seed, machine.error().c_str(), program, s.name,
                seed);
  if (is_blind) std::printf("  one of the two outcomes never occurred: the scenario does not meet its race\n");
  return !seed && !is_blind;
}

static bool run_planted(const Planted& p, u64 schedules) {
  const u64 seed = explore(p.in, p.plant, schedules);
  if (seed)
    std::printf("ok planted bug '%s' in %s: found after %lu schedules: %s\n", p.what, p.in.name, seed,
                machine.error().c_str());
  else
    std::printf("FAILED planted bug '%s' in %s: not found in %lu schedules\n", p.what, p.in.name, schedules);
  return seed != 0;
}

static int replay(const std::string& name, u64 seed) {
  const Scenario* scenario = nullptr;
  machine.plant = {};
  for (const Scenario* s : scenarios)
    if (s->name == name) scenario = s;
  for (const Planted* p : planted)
    if (p->what == name) scenario = &p->in, machine.plant = p->plant;
  if (!scenario) {
    std::fprintf(stderr, "there is no scenario or planted bug '%s'\n", name.c_str());
    return 2;
  }
  machine.is_traced = true;
  const bool passed = passes(*scenario, seed);
  std::printf("%s\n", passed ? "passed" : machine.error().c_str());
  return !passed;
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  u64 schedules = 100'000, seed = 1;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--schedules") schedules = std::strtoull(argv[i + 1], nullptr, 10);
    if (option == "--only") only = argv[i + 1];
    if (option == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  if (!only.empty()) return replay(only, seed);
  int failed = 0;
  for (const Scenario* s : scenarios) failed += !run_scenario(*s, schedules, argv[0]);
  // The budget of a search does not shrink with the quick run: a bug that takes many schedules costs them only there.
  for (const Planted* p : planted) failed += !run_planted(*p, std::max<u64>(schedules, 100'000));
  return failed ? 3 : 0;  // told apart from a crash by the Makefile
}
