// SumTree: draws leaves in proportion to their values.
//
// Contract
//   * 16 children a node: a node of leaves is one cache line of float32; nodes above hold float64 sums of 16 children each.
//   * A parent is always recomputed from its children, never adjusted by a difference: there is no drift, and the total
//     equals the sum of the leaves to float64 rounding after any number of updates.
//   * A leaf of value 0 is never drawn. Updates with the same leaf twice leave the last value.
//   * One thread at a time (it is private to the learner).
//
// Within a node the draw walks the children in the order 0 4 8 12, 1 5 9 13, ...: any fixed order gives the same
// distribution, and this one turns the four block sums into plain vector additions.
#pragma once

#include <new>
#include <vector>

#include "policy.hpp"

namespace fw {

template <class T>
struct LineAllocator {  // nodes must start on a cache line
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t(64)); }
  bool operator==(const LineAllocator&) const = default;
};

class SumTree {
 public:
  explicit SumTree(std::size_t num_leaves) : num_leaves_(num_leaves) {
    std::size_t n = pad(num_leaves);
    leaves_.assign(n, 0.0f);
    do {
      n /= fanout;
      levels_.emplace_back(n > 1 ? pad(n) : 1, 0.0);
      touched_.emplace_back(levels_.back().size(), 0);
      n = levels_.back().size();
    } while (n > 1);
  }

  std::size_t num_leaves() const { return num_leaves_; }
  double total() const { return levels_.back()[0]; }
  float value(std::size_t leaf) const { return leaves_[leaf]; }

  // Sets a leaf without its parents; rebuild() must follow before the next draw.
  void set_leaf(std::size_t leaf, float value) { leaves_[leaf] = value; }

  void rebuild() {
    for (std::size_t i = 0; i < leaves_.size() / fanout; ++i) levels_[0][i] = sum(&leaves_[i * fanout]);
    for (std::size_t k = 1; k < levels_.size(); ++k)
      for (std::size_t i = 0; i < levels_[k - 1].size() / fanout; ++i) levels_[k][i] = sum(&levels_[k - 1][i * fanout]);
  }

  void update(const u32* leaves, const float* values, std::size_t count) {
    changed_.clear();
    if (++stamp_ == 0) {  // 2^32 updates later: old stamps must not be taken for this one
      for (auto& level : touched_) std::fill(level.begin(), level.end(), 0u);
      stamp_ = 1;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (i + ahead < count) {
        const u32 later = leaves[i + ahead];
        prefetch_to_write(&leaves_[later]);
        prefetch_to_write(&touched_[0][later / fanout]);
        prefetch_to_write(&levels_[0][later / fanout]);
      }
      leaves_[leaves[i]] = values[i];
      note(0, leaves[i] / fanout);
    }
    for (const u32 node : changed_) levels_[0][node] = sum(&leaves_[std::size_t(node) * fanout]);
    for (std::size_t k = 1; k < levels_.size(); ++k) {
      below_.swap(changed_);
      changed_.clear();
      for (const u32 child : below_) note(k, child / fanout);
      for (const u32 node : changed_) levels_[k][node] = sum(&levels_[k - 1][std::size_t(node) * fanout]);
    }
  }

  // For each offset in [0, total): the leaf it falls on. The offsets are used up. total() must be above 0.
  void draw(double* offsets, u32* leaves, std::size_t count) const {
    std::fill_n(leaves, count, 0u);
    // Level by level over the whole batch: the nodes of the next level are on their way while this one is searched.
    for (std::size_t k = levels_.size() - 1; k-- > 0;) {
      const double* children = levels_[k].data();
      const bool above_leaves = k == 0;
      for (std::size_t i = 0; i < count; ++i) {
        leaves[i] = descend(children, leaves[i], offsets[i]);
        const std::size_t first = std::size_t(leaves[i]) * fanout;
        if (above_leaves) {
          prefetch_near(&leaves_[first]);
        } else {  // two lines
          prefetch_near(&levels_[k - 1][first]);
          prefetch_near(&levels_[k - 1][first + fanout / 2]);
        }
      }
    }
    for (std::size_t i = 0; i < count; ++i) leaves[i] = descend(leaves_.data(), leaves[i], offsets[i]);
  }

 private:
  static constexpr std::size_t fanout = 16;
  static constexpr std::size_t ahead = 16;  // updates in flight: about the fill buffers of one core

  static std::size_t pad(std::size_t n) { return std::max<std::size_t>((n + fanout - 1) / fanout * fanout, fanout); }

  template <class T>
  static double sum(const T* children) {
    double s[4] = {0, 0, 0, 0};
    for (int row = 0; row < 4; ++row)
      for (int block = 0; block < 4; ++block) s[block] += children[row * 4 + block];
    return s[0] + s[1] + s[2] + s[3];
  }

  // The child of `node` that `offset` falls on; the offset becomes relative to that child.
  template <class T>
  static u32 descend(const T* level, u32 node, double& offset) {
    const T* children = level + std::size_t(node) * fanout;
    double s[4] = {0, 0, 0, 0};
    for (int row = 0; row < 4; ++row)
      for (int block = 0; block < 4; ++block) s[block] += children[row * 4 + block];
    const double a = s[0], b = a + s[1], c = b + s[2];
    const int block = int(offset >= a) + int(offset >= b) + int(offset >= c);
    const double starts[4] = {0, a, b, c};
    double rest = offset - starts[block];
    const double p = children[block], q = p + children[block + 4], r = q + children[block + 8];
    const int row = int(rest >= p) + int(rest >= q) + int(rest >= r);
    const double row_starts[4] = {0, p, q, r};
    int child = row * 4 + block;
    rest -= row_starts[row];
    if (children[child] <= 0) [[unlikely]] {  // rounding carried the offset past the last child that has a value
      child = int(std::max_element(children, children + fanout) - children);
      rest = 0;
    }
    offset = rest;
    return node * u32(fanout) + u32(child);
  }

  void note(std::size_t level, u32 node) {
    if (touched_[level][node] == stamp_) return;
    touched_[level][node] = stamp_;
    changed_.push_back(node);
  }

  std::size_t num_leaves_;
  std::vector<float, LineAllocator<float>> leaves_;
  std::vector<std::vector<double, LineAllocator<double>>> levels_;  // [0] sums the leaves, the last has one node: the total
  std::vector<std::vector<u32>> touched_;                           // per node: the stamp of the update that last changed it
  std::vector<u32> changed_, below_;
  u32 stamp_ = 0;
};

}  // namespace fw
