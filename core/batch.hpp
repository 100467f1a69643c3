// What a sampler is asked for, and where it puts the answer.
#pragma once

#include <stdexcept>
#include <vector>

#include "policy.hpp"

namespace fw {

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// xoshiro256++: four words of state, which a checkpoint keeps.
struct Random {
  u64 s[4];
  explicit Random(u64 seed) {
    for (u64& word : s) {  // splitmix64, so that near seeds give far states
      u64 z = (seed += 0x9e3779b97f4a7c15u);
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      word = z ^ (z >> 31);
    }
  }
  u64 next() {
    const u64 out = std::rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0], s[3] ^= s[1], s[1] ^= s[2], s[0] ^= s[3], s[2] ^= t;
    s[3] = std::rotl(s[3], 45);
    return out;
  }
  // From all 64-bit numbers to those below n: off by less than n / 2^64, which no test can see.
  static u64 scaled(u64 random, u64 n) { return u64((unsigned __int128)random * n >> 64); }
  u64 below(u64 n) { return scaled(next(), n); }
  double unit() { return double(next() >> 11) * 0x1p-53; }
};

struct SampleSettings {
  std::size_t batch = 1;  // rows of one update
  std::size_t n_step = 1;
  double gamma = 0.99;
  std::size_t stack = 1;
  bool pad_with_zeros = false;
  double alpha = 0.6;
  u64 seed = 0;
  std::size_t updates = 1;  // that one draw serves: their rows lie one after the other

  std::size_t rows() const { return batch * updates; }
};

// Where one batch goes. Observation fields are [rows, stack, bytes], the others [rows, bytes].
struct BatchOut {
  std::vector<char*> now, next;  // by field; next is null for what is not an observation
  // Only with n_step 1 and a stack: fields are [rows, stack + 1, bytes] and next is now, moved on by one frame. Five copies in
  // place of eight for a stack of four.
  bool shares_frames = false;
  float *reward, *discount, *weight, *chance;
  i64 *steps, *lane, *row, *version, *age;
};

}  // namespace fw
