// The Python face of lanes, shared by their binding and the sampler's.
#pragma once

#include "bind.hpp"

namespace fw {

struct FieldType {
  std::string name;
  ArrayType type;
  std::vector<i64> shape;
};

struct BoundLanes : Home {
  std::shared_ptr<Segment> segment;
  Lanes<NativePolicy> lanes;
  std::vector<Field> fields;
  std::vector<FieldType> types;

  std::size_t checked(i64 lane) const {
    check();
    if (lane < 0 || std::size_t(lane) >= lanes.shape().num_lanes)
      throw Refused("lane " + std::to_string(lane) + " does not exist: there are lanes 0 to " +
                    std::to_string(lanes.shape().num_lanes - 1) + ".");
    return std::size_t(lane);
  }
};

}  // namespace fw
