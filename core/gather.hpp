// Gather: a picked row into a batch, with what belongs to it: the state after its steps, and the frames of both stacks.
//
// Contract
//   * Nothing is checked: the caller has looked that the rows are there, and looks again whether they were overwritten meanwhile.
//   * Stacks are oldest first, and never reach across the begin of an episode.
#pragma once

#include "batch.hpp"
#include "lanes.hpp"

namespace fw {

struct Pick {
  std::size_t index;  // of its row in the batch
  std::size_t lane, slot;
  u64 row;
  float chance;
  // found out by the sampler's look():
  double reward, discount;
  std::size_t steps, before;  // steps bridged; steps since the episode began
  bool is_start;
};

// The stack that ends `ahead` rows after the picked one.
template <class P>
void gather_stack(char* to, const Pick& pick, std::size_t ahead, const Lanes<P>& lanes, const Field& field,
                  const SampleSettings& set) {
  const std::size_t begun = pick.before + ahead;  // rows of this episode before the newest frame
  for (std::size_t back = set.stack; back-- > 0; to += field.bytes) {
    if (back > begun && set.pad_with_zeros) {
      std::memset(to, 0, field.bytes);
      continue;
    }
    const i64 shift = i64(ahead) - i64(std::min(back, begun));
    lanes.copy_field(to, pick.lane, lanes.slot_shift(pick.slot, shift), field);
  }
}

template <class P>
void gather(BatchOut& out, const Pick& pick, u64 age, const Lanes<P>& lanes, const std::vector<Field>& fields,
            const SampleSettings& set) {
  const std::size_t i = pick.index;
  out.reward[i] = float(pick.reward);
  out.discount[i] = float(pick.discount);
  out.chance[i] = pick.chance;
  out.steps[i] = i64(pick.steps);
  out.lane[i] = i64(pick.lane);
  out.row[i] = i64(pick.row);
  out.age[i] = i64(age);
  out.version[i] = i64(lanes.version(pick.lane, pick.slot));
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const Field& field = fields[f];
    if (!field.is_observation) {
      lanes.copy_field(out.now[f] + i * field.bytes, pick.lane, pick.slot, field);
      continue;
    }
    if (set.stack == 1) {
      lanes.copy_field(out.now[f] + i * field.bytes, pick.lane, pick.slot, field);
      lanes.copy_field(out.next[f] + i * field.bytes, pick.lane, lanes.slot_shift(pick.slot, i64(pick.steps)), field);
      continue;
    }
    const std::size_t stacked = field.bytes * (set.stack + out.shares_frames);
    gather_stack(out.now[f] + i * stacked, pick, 0, lanes, field, set);
    if (out.shares_frames)
      lanes.copy_field(out.now[f] + (i + 1) * stacked - field.bytes, pick.lane, lanes.slot_shift(pick.slot, 1), field);
    else
      gather_stack(out.next[f] + i * stacked, pick, pick.steps, lanes, field, set);
  }
}

}  // namespace fw
