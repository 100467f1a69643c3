#include "bind_lanes.hpp"

namespace fw {

static constexpr u64 kReleaseBytes = 1 << 15;

// One actor's right to write some lanes.
//
// Contract: append() checks everything before it writes anything; it knows where episodes begin (after a last row, where begin()
// says so, and where the writer was opened, unless it was told that the lane's episode goes on).
class Writer : Home {
 public:
  Writer(std::shared_ptr<BoundLanes> bound, const std::vector<i64>& lanes, const std::vector<i64>& go_on)
      : bound_(std::move(bound)) {
    own_.resize(bound_->lanes.shape().num_lanes);
    for (const i64 lane : lanes) bound_->checked(lane);
    for (const i64 lane : go_on) bound_->checked(lane);
    for (const i64 lane : lanes) own_[std::size_t(lane)] = {bound_->lanes.open(std::size_t(lane)), 0};
    for (const i64 lane : go_on) own_[std::size_t(lane)].step = bound_->lanes.next_step(std::size_t(lane));
  }

  i64 append(nb::handle lanes, nb::typed<nb::tuple, nb::object, nb::ellipsis> sources, nb::handle reward, nb::handle terminated, nb::handle truncated, u64 version,
             nb::handle priority) {
    check();
    const i64 n = Array::length(lanes, "lanes");
    const Array lane(lanes, "lanes", {'i', 8}, n);
    const Array rewards(reward, "reward", {'f', 4}, n);
    const Array ended(terminated, "terminated", {'b', 1}, n);
    const Array cut(truncated, "truncated", {'b', 1}, n);
    std::vector<Array> fields;
    fields.reserve(bound_->fields.size());
    for (std::size_t f = 0; f < bound_->fields.size(); ++f) {
      const FieldType& t = bound_->types[f];
      fields.emplace_back(sources[f], t.name.c_str(), t.type, n, t.shape);
    }
    std::optional<Array> priorities;
    if (!priority.is_none()) {
      priorities.emplace(priority, "priority", ArrayType{'f', 4}, n);
      check_priorities(priorities->data<float>(), n);
    }
    for (i64 i = 0; i < n; ++i) check_owned(lane.data<i64>()[i]);
    // A few rows are written sooner than another thread could take the interpreter and give it back.
    std::optional<nb::gil_scoped_release> free;
    if (u64(n) * bound_->lanes.shape().payload_words * 8 >= kReleaseBytes) free.emplace();
    return write(lane.data<i64>(), n, fields, rewards.data<float>(), ended.data<char>(), cut.data<char>(), version,
                 priorities ? priorities->data<float>() : nullptr);
  }

  // The next row of each of these lanes is the first of an episode. If the one before it did not end, it is cut there: the row before
  // has no outcome, and is no start of a sample.
  void begin(nb::handle lanes) {
    const i64 n = Array::length(lanes, "lanes");
    const Array lane(lanes, "lanes", {'i', 8}, n);
    for (i64 i = 0; i < n; ++i) check_owned(lane.data<i64>()[i]);
    for (i64 i = 0; i < n; ++i) own_[std::size_t(lane.data<i64>()[i])].step = 0;
  }

  u64 epoch(i64 lane) const { return own_[bound_->checked(lane)].epoch; }

 private:
  struct Own {
    u64 epoch = 0;  // 0: not ours
    u64 step = 0;
  };

  void check_owned(i64 lane) const {
    const Own& own = own_[bound_->checked(lane)];
    if (!own.epoch) throw Refused("lane " + std::to_string(lane) + " was not opened by this writer.");
    refuse_replaced(lane, 0);
  }

  void refuse_replaced(i64 lane, i64 written) const {
    const u64 mine = own_[std::size_t(lane)].epoch, now = bound_->lanes.epoch(std::size_t(lane));
    if (mine != now)
      throw Refused("lane " + std::to_string(lane) + " was given to another writer (epoch " + std::to_string(now) +
                    ", this one has " + std::to_string(mine) + "). Rows of this call that were written: " +
                    std::to_string(written) + ".");
  }

  i64 write(const i64* lane, i64 n, const std::vector<Array>& from, const float* reward, const char* ended,
            const char* cut, u64 version, const float* priority) {
    const std::vector<Field>& fields = bound_->fields;
    std::vector<const char*> at(fields.size());
    for (i64 i = 0; i < n; ++i) {
      Own& own = own_[std::size_t(lane[i])];
      const u32 flags = (ended[i] ? kTerminated : 0u) | (cut[i] ? kTruncated : 0u);
      for (std::size_t f = 0; f < fields.size(); ++f)
        at[f] = flags && !fields[f].is_observation ? nullptr : from[f].data<char>() + std::size_t(i) * fields[f].bytes;
      if (!bound_->lanes.append(std::size_t(lane[i]), own.epoch, {reward[i], flags, own.step}, version,
                                priority ? priority[i] : -1.0f, fields, at.data())) {
        bound_->lanes.announce(u64(i));
        refuse_replaced(lane[i], i);
      }
      own.step = flags ? 0 : own.step + 1;
    }
    bound_->lanes.announce(u64(n));
    return n;
  }

  std::shared_ptr<BoundLanes> bound_;
  std::vector<Own> own_;
};

static std::shared_ptr<BoundLanes> make_lanes(
    std::shared_ptr<Segment> segment, std::size_t num_lanes, std::size_t slots,
    const std::vector<std::tuple<std::string, std::string, std::size_t, std::vector<i64>, bool>>& fields,
    std::optional<u64> format_at) {
  auto made = std::make_shared<BoundLanes>();
  LaneShape shape{num_lanes, slots, 0};
  for (const auto& [name, kind, itemsize, dims, is_observation] : fields) {
    std::size_t bytes = itemsize;
    for (const i64 d : dims) bytes *= std::size_t(d);
    made->fields.push_back({shape.payload_words, bytes, is_observation});
    made->types.push_back({name, {kind.at(0), itemsize}, dims});
    shape.payload_words += words_for(bytes);
  }
  const std::size_t needed = Lanes<NativePolicy>::num_words(shape) * 8;
  if (segment->bytes() < needed)
    throw Refused("the lanes need " + std::to_string(needed) + " bytes, the segment has " +
                  std::to_string(segment->bytes()) + ".");
  made->lanes = Lanes<NativePolicy>(segment->words(), shape);
  made->segment = std::move(segment);
  if (format_at) made->lanes.format(*format_at);
  return made;
}

void bind_lanes(nb::module_& m) {
  nb::class_<BoundLanes>(m, "Lanes")
      .def_static("num_bytes",
                  [](std::size_t num_lanes, std::size_t slots, std::size_t payload_words) {
                    return Lanes<NativePolicy>::num_words({num_lanes, slots, payload_words}) * 8;
                  },
                  nb::arg("num_lanes"), nb::arg("slots"), nb::arg("payload_words"))
      .def_static("make", &make_lanes, nb::arg("segment"), nb::arg("num_lanes"), nb::arg("slots"), nb::arg("fields"),
                  nb::arg("format_at").none())
      .def("writer",
           [](std::shared_ptr<BoundLanes> self, const std::vector<i64>& lanes, const std::vector<i64>& go_on) {
             self->check();
             return Writer(std::move(self), lanes, go_on);
           }, nb::arg("lanes"), nb::arg("go_on"))
      .def("head_bytes", [](const BoundLanes& self) { return Lanes<NativePolicy>::head_bytes(self.lanes.shape()); })
      .def("used", [](const BoundLanes& self) {
        self.check();
        return self.lanes.used();
      })
      .def("head", [](const BoundLanes& self, i64 lane) { return self.lanes.head(self.checked(lane)); })
      .def("base", [](const BoundLanes& self, i64 lane) { return self.lanes.base(self.checked(lane)); })
      .def("epoch", [](const BoundLanes& self, i64 lane) { return self.lanes.epoch(self.checked(lane)); })
      .def("rows", [](const BoundLanes& self) {
        self.check();
        u64 rows = 0;
        for (std::size_t l = 0; l < self.lanes.shape().num_lanes; ++l) rows += self.lanes.head(l) - self.lanes.base(l);
        return rows;
      })
      .def_prop_ro("max_priority", [](const BoundLanes& self) { return self.lanes.max_priority(); })
      .def("raise_max_priority", [](BoundLanes& self, float value) {
        check_priorities(&value, 1);
        self.lanes.raise_max_priority(value);
      }, nb::arg("value"))
      .def("wait_rows", [](const BoundLanes& self, u64 target, double timeout_s) {
        self.check();
        return wait_without_gil(timeout_s, [&](i64 until) { return self.lanes.rows().wait(target, until, SignalCheck{}); });
      }, nb::arg("target"), nb::arg("timeout_s"));

  nb::class_<Writer>(m, "Writer")
      .def("append", &Writer::append, nb::arg("lanes"), nb::arg("fields"), nb::arg("reward"), nb::arg("terminated"),
           nb::arg("truncated"), nb::arg("version"), nb::arg("priority").none())
      .def("begin", &Writer::begin, nb::arg("lanes"))
      .def("epoch", &Writer::epoch);
}

}  // namespace fw
