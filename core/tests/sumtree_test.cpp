// The sum tree against plain arrays (F12).
#include "../sumtree.hpp"

#include <cmath>

#include "../sampler.hpp"
#include "check.hpp"

using namespace fw;
using namespace fw::test;

namespace {

constexpr std::size_t sizes[] = {1, 2, 3, 15, 16, 17, 100, 255, 256, 257, 4'096, 4'097, 65'537, 1'000'000};

// Zeros, equal values and six orders of magnitude, as TD errors have.
float some_value(Random& random) {
  const u64 kind = random.below(8);
  if (kind == 0) return 0;
  if (kind == 1) return 1;
  return float(std::exp2(20 * random.unit() - 10));
}

double sum_of(const std::vector<float>& values) {
  long double sum = 0;
  for (const float v : values) sum += v;
  return double(sum);
}

bool is_close(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b)); }

// The chance of counts at least this far from the expected ones, by Wilson and Hilferty's normal form of chi-square.
// Neighbours are put together until 20 are expected, for which that form holds.
double chi_square_p(const std::vector<double>& expected, const std::vector<u64>& counts) {
  double chi = 0, e = 0, c = 0, bins = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    e += expected[i], c += double(counts[i]);
    if (e < 20) continue;
    chi += (c - e) * (c - e) / e;
    bins += 1, e = c = 0;
  }
  const double k = bins - 1;
  if (k < 1) return 1;
  const double z = (std::cbrt(chi / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
  return std::erfc(z / std::sqrt(2.0)) / 2;
}

std::vector<u64> draw_counts(const SumTree& tree, std::size_t num_draws, Random& random) {
  std::vector<u64> counts(tree.num_leaves());
  double offsets[100];
  u32 leaves[100];
  for (std::size_t done = 0; done < num_draws; done += 100) {
    for (double& offset : offsets) offset = random.unit() * tree.total();
    tree.draw(offsets, leaves, 100);
    for (const u32 leaf : leaves) {
      CHECK(leaf < tree.num_leaves() && tree.value(leaf) > 0, "leaf %u of %zu was drawn", leaf, tree.num_leaves());
      if (leaf < counts.size()) ++counts[leaf];
    }
  }
  return counts;
}

SumTree filled_tree(std::size_t size, Random& random) {
  SumTree tree(size);
  for (std::size_t i = 0; i < size; ++i) tree.set_leaf(i, some_value(random));
  tree.set_leaf(size - 1, 1);  // never all zero
  tree.rebuild();
  return tree;
}

}  // namespace

// Many updates, the same leaf often twice in one: leaves and total are those of a plain array.
TEST(sumtree_equals_plain_array) {
  Random random(1);
  const std::size_t per_size = quick_or_full(1'000'000, 10'000'000) / std::size(sizes);
  for (const std::size_t size : sizes) {
    SumTree tree(size);
    std::vector<float> plain(size), values;
    std::vector<u32> leaves;
    for (std::size_t done = 0, updates = 0; done < per_size; ++updates) {
      const std::size_t count = 1 + random.below(300);
      const u64 spread = random.below(4) ? size : std::min<u64>(size, 10);  // few leaves: many duplicates
      leaves.clear(), values.clear();
      for (std::size_t i = 0; i < count; ++i) {
        leaves.push_back(u32(random.below(spread)));
        values.push_back(some_value(random));
        plain[leaves.back()] = values.back();
      }
      tree.update(leaves.data(), values.data(), count);
      done += count;
      if (updates % (1 + size / 64) == 0)
        CHECK(is_close(tree.total(), sum_of(plain)), "%zu leaves: total %g, sum %g", size, tree.total(), sum_of(plain));
    }
    for (std::size_t i = 0; i < size; ++i)
      CHECK(tree.value(i) == plain[i], "leaf %zu of %zu is %g, not %g", i, size, tree.value(i), plain[i]);
    CHECK(is_close(tree.total(), sum_of(plain)), "%zu leaves: total %g, sum %g", size, tree.total(), sum_of(plain));
  }
}

TEST(sumtree_last_duplicate_wins) {
  SumTree tree(40);
  const u32 leaves[] = {7, 7, 39, 7, 39};
  const float values[] = {5, 0, 4, 2, 3};
  tree.update(leaves, values, 5);
  CHECK(tree.value(7) == 2 && tree.value(39) == 3 && tree.total() == 5, "total %g", tree.total());
}

TEST(sumtree_draws_in_proportion) {
  Random random(2);
  for (const std::size_t size : sizes) {
    const SumTree tree = filled_tree(size, random);
    const std::size_t num_draws = size == 1'000'000 || is_full ? 1'000'000 : 100'000;
    const std::vector<u64> counts = draw_counts(tree, num_draws, random);
    std::vector<double> expected(size);
    for (std::size_t i = 0; i < size; ++i) expected[i] = tree.value(i) / tree.total() * double(num_draws);
    const double p = chi_square_p(expected, counts);
    CHECK(p > 0.001, "%zu leaves: chi-square p = %g", size, p);
  }
}

// The chi-square above can fail: a tree that gives every tenth leaf a tenth too much is seen.
TEST(sumtree_chi_square_sees_a_wrong_tree) {
  Random random(3);
  SumTree tree(1000);
  for (std::size_t i = 0; i < 1000; ++i) tree.set_leaf(i, i % 10 ? 1.0f : 1.1f);
  tree.rebuild();
  const double p = chi_square_p(std::vector<double>(1000, 1000.0), draw_counts(tree, 1'000'000, random));
  CHECK(p < 0.001, "p = %g", p);
}

// One leaf among zeros, and offsets at both ends and past them (as rounding may give): only that leaf.
TEST(sumtree_never_draws_zero) {
  Random random(4);
  for (const std::size_t size : sizes)
    for (int i = 0; i < 100; ++i) {
      SumTree tree(size);
      const u32 leaf = i == 0 ? 0 : i == 1 ? u32(size - 1) : u32(random.below(size));
      const float value = float(std::exp2(60 * random.unit() - 30));
      tree.update(&leaf, &value, 1);
      const double total = tree.total();
      double offsets[] = {0, total / 3, std::nextafter(total, 0), total, std::nextafter(total, 2 * total)};
      u32 leaves[5];
      tree.draw(offsets, leaves, 5);
      for (const u32 drawn : leaves) CHECK(drawn == leaf, "%zu leaves: %u drawn, only %u has a value", size, drawn, leaf);
      if (size > 100'000 && i == 5) break;
    }
}

TEST(sumtree_rebuild_equals_updates) {
  Random random(5);
  for (const std::size_t size : sizes) {
    const SumTree built = filled_tree(size, random);
    SumTree updated(size);
    for (u32 leaf = 0; leaf < size; ++leaf) {
      const float value = built.value(leaf);
      updated.update(&leaf, &value, 1);
    }
    CHECK(built.total() == updated.total(), "%zu leaves: %.17g and %.17g", size, built.total(), updated.total());
    for (int i = 0; i < 1000; ++i) {
      double a = random.unit() * built.total(), b = a;
      u32 from_built, from_updated;
      built.draw(&a, &from_built, 1);
      updated.draw(&b, &from_updated, 1);
      CHECK(from_built == from_updated, "%zu leaves: %u and %u", size, from_built, from_updated);
    }
  }
}

// Whatever counts updates inside the tree may pass 2^32 (F20).
TEST(sumtree_after_2_to_32_updates) {
  if (!is_full || is_sanitized) {
    skipped = "takes 20 s, and minutes under a sanitizer: only in the plain full run";
    return;
  }
  SumTree tree(16);
  for (u64 i = 0; i < (u64(1) << 32) - 1; ++i) {
    tree.update(nullptr, nullptr, 0);
    asm volatile("" ::: "memory");
  }
  const u32 leaf = 3;
  const float value = 2;
  tree.update(&leaf, &value, 1);
  CHECK(tree.total() == 2, "total %g after one leaf was set to 2", tree.total());
}
