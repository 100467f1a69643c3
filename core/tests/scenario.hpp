// Scenarios: small worlds on the model machine that must hold under every schedule, and bugs that must be found in them.
//
// A scenario has two outcomes that both must occur (a row trusted, a row thrown away): one that never meets the race it
// is about proves nothing. A planted bug names the scenario it breaks; the search stops at the first seed that shows it.
#pragma once

#include "content.hpp"
#include "model.hpp"

namespace fw::model {

struct Scenario;
inline std::vector<const Scenario*> scenarios;

struct Scenario {
  const char* name;
  const char* usual;
  const char* rare;
  void (*play)(u64 seed);  // sets up on `machine`, spawns, runs, and looks at the outcome

  Scenario(const char* n, const char* u, const char* r, void (*p)(u64)) : name(n), usual(u), rare(r), play(p) {
    scenarios.push_back(this);
  }
};

struct Planted;
inline std::vector<const Planted*> planted;

struct Planted {
  const char* what;
  const Scenario& in;
  Plant plant;

  Planted(const char* w, const Scenario& i, Plant p) : what(w), in(i), plant(std::move(p)) { planted.push_back(this); }
};

using test::content;
using test::near_a_limit;

inline u64 num_usual, num_rare;
inline void happened(bool is_rare) { ++(is_rare ? num_rare : num_usual); }

constexpr i64 no_deadline = INT64_MAX;
constexpr auto never = [] { return false; };

}  // namespace fw::model
