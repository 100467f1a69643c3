// Story: rows that follow from their number alone, so that whoever reads one, at any time, can tell whether it is right.
//
// Contract
//   * Episodes end by termination, by truncation, or are cut without a last row, as when a writer is replaced; some are
//     one step long. All of it is fixed by the seed before anything runs, so threads may read a story without a lock.
//   * wrong_with() compares one sample of a batch with the story, by the plain definition of an n-step sample.
#pragma once

#include <string>

#include "../sampler.hpp"
#include "content.hpp"

namespace fw::test {

class Story {
 public:
  // An observation of `observation_bytes` and an action of 5 bytes, which fills no whole word.
  Story(std::size_t num_rows, u64 seed, u64 first_row, std::size_t observation_bytes)
      : fields{{0, observation_bytes, true}, {words_for(observation_bytes), 5, false}}, first_row_(first_row) {
    Random random(seed);
    u64 step = 0;
    for (std::size_t i = 0; i < num_rows; ++i) {
      Row row{float(random.below(100)), 0, step};
      const u64 luck = random.below(16);
      if (step) row.flags = luck == 0 ? kTerminated : luck == 1 ? kTruncated : luck == 2 ? u32(kLast) : 0;
      step = row.flags || luck == 3 ? 0 : step + 1;
      rows_.push_back(row);
    }
  }

  const std::vector<Field> fields;
  std::size_t payload_words() const { return fields[1].offset_words + 1; }
  std::size_t num_rows() const { return rows_.size(); }

  void bytes_of(u64 lane, u64 row, std::size_t field, char* to) const {
    for (std::size_t at = 0; at < fields[field].bytes; at += 8) {
      const u64 value = content(row + lane * 0x10000000000u, field * 1000 + at);
      std::memcpy(to + at, &value, std::min<std::size_t>(8, fields[field].bytes - at));
    }
  }

  // Appends row `index` of the story, which has to be the lane's next. `scratch` is the writer's own.
  template <class P>
  bool append(Lanes<P>& lanes, u64 lane, u64 epoch, std::size_t index, float priority, std::vector<char>& scratch) const {
    const Row& row = rows_[index];
    scratch.resize(fields[0].bytes + fields[1].bytes);
    const char* sources[] = {scratch.data(), row.flags ? nullptr : scratch.data() + fields[0].bytes};
    bytes_of(lane, first_row_ + index, 0, scratch.data());
    bytes_of(lane, first_row_ + index, 1, scratch.data() + fields[0].bytes);
    return lanes.append(lane, epoch, {row.reward, row.flags, row.step}, version_of(index), priority, fields, sources);
  }

  // Whether row `index` may be drawn when `rows_written` are there and those from `oldest` on have all their frames.
  bool is_start(std::size_t index, std::size_t oldest, std::size_t rows_written, std::size_t n_step) const {
    if (index < oldest || rows_[index].flags) return false;
    for (std::size_t steps = 1; steps <= n_step; ++steps) {
      if (index + steps >= rows_written) return false;
      if (rows_[index + steps].step == 0) return steps > 1;
      if (rows_[index + steps].flags) return true;
    }
    return true;
  }

  // What is wrong with sample `i`, or nothing. `scratch` is the reader's own.
  const char* wrong_with(const BatchOut& out, std::size_t i, const SampleSettings& set,
                         std::vector<char>& scratch) const {
    const u64 lane = u64(out.lane[i]), index = u64(out.row[i]) - first_row_;
    if (index >= rows_.size()) return "no such row";
    if (rows_[index].flags) return "a last row is no start";
    double reward = 0, discount = 1;
    std::size_t steps = 0;
    while (steps < set.n_step && index + steps + 1 < rows_.size() && rows_[index + steps + 1].step) {
      const Row& next = rows_[index + ++steps];
      reward += discount * double(next.reward);
      discount *= set.gamma;
      if (next.flags & kTerminated) discount = 0;
      if (next.flags) break;
    }
    if (!steps) return "an episode was cut right after this row: it is no start";
    if (out.steps[i] != i64(steps)) return "wrong number of steps";
    if (std::abs(double(out.reward[i]) - reward) > 1e-4 * (1 + reward)) return "wrong return";
    if (std::abs(double(out.discount[i]) - discount) > 1e-6) return "wrong discount";
    if (u64(out.version[i]) != version_of(index)) return "wrong policy version";
    scratch.resize(fields[0].bytes);
    bytes_of(lane, first_row_ + index, 1, scratch.data());
    if (std::memcmp(out.now[1] + i * fields[1].bytes, scratch.data(), fields[1].bytes)) return "wrong action";
    if (!stack_is_right(out.now[0], i, lane, index, set, scratch)) return "wrong observation";
    if (!stack_is_right(out.next[0], i, lane, index + steps, set, scratch)) return "wrong next observation";
    return nullptr;
  }

 private:
  struct Row {
    float reward;
    u32 flags;
    u64 step;
  };

  static u64 version_of(std::size_t index) { return index / 3; }

  bool stack_is_right(const char* all, std::size_t i, u64 lane, u64 newest, const SampleSettings& set,
                      std::vector<char>& scratch) const {
    const std::size_t bytes = fields[0].bytes;
    for (std::size_t k = 0; k < set.stack; ++k) {
      // The first frame of an episode stands in for those before it.
      const u64 back = std::min<u64>(set.stack - 1 - k, rows_[newest].step);
      bytes_of(lane, first_row_ + newest - back, 0, scratch.data());
      if (std::memcmp(all + (i * set.stack + k) * bytes, scratch.data(), bytes)) return false;
    }
    return true;
  }

  u64 first_row_;
  std::vector<Row> rows_;
};

// Room for one batch. It stays where it is: `out` points into it.
struct Room {
  BatchOut out{};
  std::vector<std::vector<char>> fields;
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<i64>> integers;

  Room(const Room&) = delete;
  Room(const std::vector<Field>& of, const SampleSettings& set) {
    for (const Field& field : of) {
      const std::size_t bytes = set.rows() * field.bytes * (field.is_observation ? set.stack : 1);
      out.now.push_back(fields.emplace_back(bytes).data());
      out.next.push_back(field.is_observation ? fields.emplace_back(bytes).data() : nullptr);
    }
    for (float** column : {&out.reward, &out.discount, &out.weight, &out.chance})
      *column = floats.emplace_back(set.rows()).data();
    for (i64** column : {&out.steps, &out.lane, &out.row, &out.version, &out.age})
      *column = integers.emplace_back(set.rows()).data();
  }
};

}  // namespace fw::test
