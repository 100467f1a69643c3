#include <pthread.h>

#include "bind.hpp"
#include "board.hpp"
#include "ledger.hpp"
#include "fault_points.hpp"

namespace fw {

using NativeBoard = Board<NativePolicy>;
using NativeLedger = Ledger<NativePolicy>;
using NativeCounter = Counter<NativePolicy>;

// A part of the core that lives in a segment, which it keeps mapped.
template <class Part>
struct Placed : Home {
  std::shared_ptr<Segment> segment;
  Part part;
};

template <class Part>
static std::shared_ptr<Placed<Part>> place(std::shared_ptr<Segment> segment, std::size_t at_words, std::size_t words,
                                           auto... shape) {
  if (segment->bytes() < (at_words + words) * 8)
    throw Refused("this part needs " + std::to_string((at_words + words) * 8) + " bytes, the segment has " +
                  std::to_string(segment->bytes()) + ".");
  auto made = std::make_shared<Placed<Part>>();
  made->part = Part(segment->words() + at_words, shape...);
  made->segment = std::move(segment);
  return made;
}

static void bind_segment(nb::module_& m) {
  nb::class_<Segment>(m, "Segment")
      .def_static("create", [](std::size_t bytes, const std::string& name) {
        nb::gil_scoped_release free;
        return std::make_shared<Segment>(Segment::create(bytes, name));
      }, nb::arg("num_bytes"), nb::arg("name"))
      .def_static("attach", [](int fd) { return std::make_shared<Segment>(Segment::attach(fd)); }, nb::arg("fd"))
      .def_prop_ro("fd", &Segment::fd)
      .def_prop_ro("num_bytes", &Segment::bytes);
}

static void bind_board(nb::module_& m) {
  using Bound = Placed<NativeBoard>;
  nb::class_<Bound>(m, "Board")
      .def_static("num_bytes", [](std::size_t slots, std::size_t bytes) { return NativeBoard::num_words(slots, bytes) * 8; },
                  nb::arg("slots"), nb::arg("num_bytes"))
      .def_static("make", [](std::shared_ptr<Segment> segment, std::size_t slots, std::size_t bytes, std::optional<u64> format_at) {
        auto made = place<NativeBoard>(std::move(segment), 0, NativeBoard::num_words(slots, bytes), slots, bytes);
        if (format_at) made->part.format(*format_at);
        return made;
      }, nb::arg("segment"), nb::arg("slots"), nb::arg("num_bytes"), nb::arg("format_at").none())
      .def_prop_ro("version", [](const Bound& self) { return self.part.version(); })
      .def_prop_ro("first_version", [](const Bound& self) { return self.part.first_version(); })
      .def("publish", [](Bound& self, std::size_t address) {
        self.check();
        nb::gil_scoped_release free;
        return self.part.publish(reinterpret_cast<const void*>(address));
      }, nb::arg("address"))
      .def("fetch", [](const Bound& self, std::size_t address) -> std::optional<u64> {
        self.check();
        nb::gil_scoped_release free;
        u64 version;
        if (!self.part.fetch(reinterpret_cast<void*>(address), version)) return std::nullopt;
        return version;
      }, nb::arg("address"))
      .def("wait", [](const Bound& self, u64 version, double timeout_s) {
        self.check();
        return wait_without_gil(timeout_s, [&](i64 until) { return self.part.wait_for(version, until, SignalCheck{}); });
      }, nb::arg("version"), nb::arg("timeout_s"));
}

static void bind_counter(nb::module_& m) {
  using Bound = Placed<NativeCounter>;
  nb::class_<Bound>(m, "Counter")
      .def_static("num_bytes", [] { return std::size_t(64); })
      .def_static("make", [](std::shared_ptr<Segment> segment, std::size_t index, std::optional<u64> format_at) {
        auto made = place<NativeCounter>(std::move(segment), index * 8, NativeCounter::num_words);
        if (format_at) made->part.format(*format_at);
        return made;
      }, nb::arg("segment"), nb::arg("index"), nb::arg("format_at").none())
      .def_prop_ro("value", [](const Bound& self) { return self.part.load(); })
      .def("add", [](Bound& self, u64 n) {
        self.check();
        self.part.add(n);
      }, nb::arg("n"))
      .def("wait", [](const Bound& self, u64 target, double timeout_s) {
        self.check();
        return wait_without_gil(timeout_s, [&](i64 until) { return self.part.wait(target, until, SignalCheck{}); });
      }, nb::arg("target"), nb::arg("timeout_s"));
}

static void bind_ledger(nb::module_& m) {
  using Bound = Placed<NativeLedger>;
  const auto checked = [](std::size_t index, std::size_t count, const char* what) {
    if (index >= count) throw Refused(std::string(what) + " " + std::to_string(index) + " does not exist.");
    return index;
  };
  nb::class_<Bound>(m, "Ledger")
      .def_static("num_bytes", [](std::size_t phases, std::size_t counters, std::size_t gauges) {
        return NativeLedger::num_words(phases, counters, gauges) * 8;
      }, nb::arg("phases"), nb::arg("counters"), nb::arg("gauges"))
      .def_static("make", [](std::shared_ptr<Segment> segment, std::size_t index, std::size_t phases, std::size_t counters,
                             std::size_t gauges) {
        const std::size_t words = NativeLedger::num_words(phases, counters, gauges);
        return place<NativeLedger>(std::move(segment), index * words, words, phases, counters, gauges);
      }, nb::arg("segment"), nb::arg("index"), nb::arg("phases"), nb::arg("counters"), nb::arg("gauges"))
      .def("start", [checked](Bound& self, std::size_t phase) {
        self.check();
        self.part.start(checked(phase, self.part.num_phases(), "phase"));
      })
      // No let-go of the GIL in marks: it would cost more than the mark.
      .def("enter", [checked](Bound& self, std::size_t phase) {
        self.check();
        self.part.enter(checked(phase, self.part.num_phases(), "phase"));
      })
      .def("count", [checked](Bound& self, std::size_t counter, u64 n) {
        self.check();
        self.part.count(checked(counter, self.part.num_counters(), "counter"), n);
      })
      .def("set", [checked](Bound& self, std::size_t gauge, double value) {
        self.check();
        self.part.set(checked(gauge, self.part.num_gauges(), "gauge"), value);
      })
      .def("snapshot", [](const Bound& self) {
        self.check();
        std::vector<u64> values(self.part.num_values());
        const bool whole = self.part.snapshot(values.data());
        const std::size_t first = self.part.num_phases() + self.part.num_counters();
        std::vector<double> gauges;
        for (std::size_t i = first; i < values.size(); ++i) gauges.push_back(std::bit_cast<double>(values[i]));
        values.resize(first);
        return std::tuple(whole, values, gauges);
      })
      // What one mark costs without Python around it.
      .def("mark_cost_ns", [](Bound& self, std::size_t marks) {
        const i64 begin = now_ns();
        for (std::size_t i = 0; i < marks; ++i) self.part.enter(i % self.part.num_phases());
        return double(now_ns() - begin) / double(marks);
      }, nb::arg("marks"));
}

static Point point_or_refuse(const std::string& name) {
  const Point point = point_named(name);
  if (point == Point::none) throw Refused("there is no fault point " + name + ".");
  return point;
}

static void bind_points(nb::module_& m) {
  m.def("point_names", [] { return std::vector<std::string>(point_names.begin(), point_names.end()); });
  m.def("arm_point", [](const std::string& name, i64 arrival, int signal) {
    armed_point.left = arrival;
    armed_point.signal = signal;
    armed_point.point = point_or_refuse(name);
  }, nb::arg("name"), nb::arg("arrival"), nb::arg("signal"));
  m.def("reach_point", [](const std::string& name) { reach(point_or_refuse(name)); }, nb::arg("name"));
}

void bind_memory(nb::module_& m) {
  bind_segment(m);
  bind_board(m);
  bind_counter(m);
  bind_ledger(m);
  bind_points(m);
  pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
}

}  // namespace fw
