// Random numbers of lanes: each a hash of the run's seed, the lane and how often the lane drew, so that a lane's numbers do not depend on
// which others are ready with it. One call where NumPy takes a dozen, each of which costs more than its numbers.
#include "plain.hpp"

namespace fw {
namespace {

constexpr u64 kStride = 0x9E3779B97F4A7C15;

// The finaliser of splitmix64: every bit of the input moves every bit of the output.
u64 mix(u64 x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// result [lanes, width]: uniform in 0..1, without 1. `drawn` counts the draws of each lane and grows by one for those of `lanes`.
void draw_lanes(nb::handle keys, nb::handle drawn, nb::handle lanes, nb::handle result) {
  const i64 all = Array::length(keys, "keys"), rows = Array::length(lanes, "lanes");
  const Array key(keys, "keys", {'u', 8}, all), lane(lanes, "lanes", {'i', 8}, rows);
  View counts, out;
  if (!counts.open(drawn.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) || counts.buffer.ndim != 1 ||
      counts.buffer.shape[0] != all || std::strchr("lq", counts.buffer.format[0]) == nullptr)
    throw Refused("drawn must be an array of int64[" + std::to_string(all) + "] to write to.");
  if (!out.open(result.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) || out.buffer.ndim != 2 ||
      out.buffer.shape[0] != rows || std::strcmp(out.buffer.format, "d") != 0)
    throw Refused("the result must be an array of float64[" + std::to_string(rows) + ", any] to write to.");
  const i64* which = lane.data<i64>();
  for (i64 i = 0; i < rows; ++i)
    if (which[i] < 0 || which[i] >= all)
      throw Refused("lane " + std::to_string(which[i]) + " is not one of the " + std::to_string(all) + " that draw here.");
  u64* count = static_cast<u64*>(counts.buffer.buf);
  double* to = static_cast<double*>(out.buffer.buf);
  const u64 width = u64(out.buffer.shape[1]);
  for (i64 i = 0; i < rows; ++i) {
    const u64 begin = mix(key.data<u64>()[which[i]] + count[which[i]]++ * kStride);
    for (u64 j = 0; j < width; ++j) *to++ = double(mix(begin + (j + 1) * kStride) >> 11) * 0x1p-53;
  }
}

}  // namespace

void bind_chance(nb::module_& m) {
  m.def("draw_lanes", &draw_lanes, nb::arg("keys"), nb::arg("drawn"), nb::arg("lanes"), nb::arg("result"));
}

}  // namespace fw
