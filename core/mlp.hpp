// Mlp: small fully connected networks over rows of floats, for actors: one call where NumPy takes dozens, each of which costs more
// than its numbers.
//
// Contract
//   * Weights are read where they lie, [out, in], at every call: whoever changes them changes what comes next.
//   * Each body is a chain of dense layers, every one followed by the activation. The policy is a dense layer over the first body,
//     the value one over the last; a row of the result begins with the policy's outputs and ends with the value.
//   * tanh is a quotient of polynomials, within 4e-7.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

// One copy for each kind of registers; the loader picks.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FW_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FW_FOR_EACH_CPU
#endif
#define FW_INLINE inline __attribute__((always_inline))

namespace fw {

struct Dense {
  const float* weight;  // [out, in]
  const float* bias;
  std::size_t in, out;
};

enum class Activation { tanh, relu };

constexpr std::size_t kLanes = 16;
using Lanes16 = float __attribute__((vector_size(64), aligned(4), may_alias));

constexpr std::size_t padded(std::size_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

template <int kRows>
FW_INLINE void dense_rows(const float* x, std::size_t x_row, const Dense& layer, const float* turned, float* y, std::size_t y_row) {
  const std::size_t width = padded(layer.out);
  for (std::size_t o = 0; o < width; o += kLanes) {
    Lanes16 sums[kRows];
    const Lanes16 bias = *reinterpret_cast<const Lanes16*>(turned + layer.in * width + o);
    for (int r = 0; r < kRows; ++r) sums[r] = bias;
    for (std::size_t i = 0; i < layer.in; ++i) {
      const Lanes16 weights = *reinterpret_cast<const Lanes16*>(turned + i * width + o);
      for (int r = 0; r < kRows; ++r) sums[r] += x[std::size_t(r) * x_row + i] * weights;
    }
    for (int r = 0; r < kRows; ++r) *reinterpret_cast<Lanes16*>(y + std::size_t(r) * y_row + o) = sums[r];
  }
}

// The weights by inputs, [in + 1, padded out], the bias last: read along as a row's outputs grow.
inline void turn(const Dense& layer, std::vector<float>& turned) {
  const std::size_t width = padded(layer.out);
  turned.assign((layer.in + 1) * width, 0.0f);
  for (std::size_t o = 0; o < layer.out; ++o) {
    for (std::size_t i = 0; i < layer.in; ++i) turned[i * width + o] = layer.weight[o * layer.in + i];
    turned[layer.in * width + o] = layer.bias[o];
  }
}

// y [rows, padded out] = x [rows, in] weights^T + bias.
FW_FOR_EACH_CPU inline void dense(const float* x, std::size_t x_row, std::size_t rows, const Dense& layer, const float* turned, float* y) {
  const std::size_t y_row = padded(layer.out);
  std::size_t r = 0;
  for (; rows - r >= 8; r += 8) dense_rows<8>(x + r * x_row, x_row, layer, turned, y + r * y_row, y_row);
  for (; r < rows; ++r) dense_rows<1>(x + r * x_row, x_row, layer, turned, y + r * y_row, y_row);
}

FW_FOR_EACH_CPU inline void activate(float* y, std::size_t count, Activation activation) {
  if (activation == Activation::relu) {
    for (std::size_t i = 0; i < count; ++i) y[i] = y[i] < 0 ? 0.0f : y[i];  // a NaN stays one
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float x = y[i] < -9.0f ? -9.0f : y[i] > 9.0f ? 9.0f : y[i], u = x * x;
    const float above = (((1.335669e-08f * u + 2.06107034e-05f) * u + 0.00349569297f) * u + 0.133811161f) * u + 1.0f;
    const float below = (((7.77743537e-07f * u + 0.000328580209f) * u + 0.0258773882f) * u + 0.46714431f) * u + 1.0f;
    const float t = x * above / below;
    y[i] = t < -1.0f ? -1.0f : t > 1.0f ? 1.0f : t;
  }
}

class Mlp {
 public:
  Mlp(std::vector<std::vector<Dense>> bodies, Dense policy, Dense value, Activation activation)
      : bodies_(std::move(bodies)), policy_(policy), value_(value), activation_(activation) {}

  std::size_t in() const { return bodies_[0].empty() ? policy_.in : bodies_[0][0].in; }
  std::size_t out() const { return policy_.out; }

  // x [rows, in], result [rows, result_row].
  void run(const float* x, std::size_t rows, float* result, std::size_t result_row) {
    for (std::size_t b = 0; b < bodies_.size(); ++b) {
      const auto [features, row] = features_of(bodies_[b], x, rows);
      if (b == 0) put(features, row, rows, policy_, result, result_row);
      if (b + 1 == bodies_.size()) put(features, row, rows, value_, result + result_row - 1, result_row);
    }
  }

 private:
  std::pair<const float*, std::size_t> features_of(const std::vector<Dense>& body, const float* x, std::size_t rows) {
    const float* seen = x;
    std::size_t row = in();
    std::vector<float>*to = &one_, *other = &two_;
    for (const Dense& layer : body) {
      apply(seen, row, rows, layer, *to);
      activate(to->data(), to->size(), activation_);
      seen = to->data();
      row = padded(layer.out);
      std::swap(to, other);
    }
    return {seen, row};
  }

  void apply(const float* x, std::size_t x_row, std::size_t rows, const Dense& layer, std::vector<float>& y) {
    turn(layer, turned_);
    y.resize(rows * padded(layer.out));
    dense(x, x_row, rows, layer, turned_.data(), y.data());
  }

  void put(const float* features, std::size_t row, std::size_t rows, const Dense& head, float* result, std::size_t result_row) {
    apply(features, row, rows, head, head_);
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(head_.data() + r * padded(head.out), head.out, result + r * result_row);
  }

  std::vector<std::vector<Dense>> bodies_;
  Dense policy_, value_;
  Activation activation_;
  std::vector<float> turned_, one_, two_, head_;
};

}  // namespace fw
