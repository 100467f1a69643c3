// What tests write: words that only their number and their place give, so that any reader can tell what belongs together.
#pragma once

#include "../policy.hpp"

namespace fw::test {

inline u64 content(u64 number, u64 place) {
  u64 z = number * 0x9e3779b97f4a7c15u + place * 0xbf58476d1ce4e5b9u + 1;
  z = (z ^ (z >> 30)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Counters start at 0, so that they cross 2^32, and so that they cross 2^64 (F20), in turn.
inline u64 near_a_limit(u64 turn) {
  constexpr u64 starts[] = {0, (u64(1) << 32) - 2, ~u64(0) - 1};
  return starts[turn % 3];
}

}  // namespace fw::test
