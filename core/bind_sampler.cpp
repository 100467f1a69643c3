#include <cfloat>

#include <nanobind/ndarray.h>

#include "bind_lanes.hpp"
#include "feed.hpp"

namespace fw {

using i32 = std::int32_t;

// One array within a buffer, as DLPack describes it.
struct LentArray {
  std::size_t offset;
  nb::dlpack::dtype type;
  std::vector<i64> shape, strides;
};

// A sampler with its feed. Buffers are memory of the caller's (pinned tensors, for one).
struct BoundSampler : Home {
  std::shared_ptr<BoundLanes> bound;
  Sampler<NativePolicy> sampler;
  Feed<NativePolicy> feed;
  std::vector<LentArray> views;
  std::vector<nb::object> blocks;  // the buffers' memory: it must outlive every batch

  BoundSampler(std::shared_ptr<BoundLanes> lanes, const SampleSettings& settings, bool prioritized, std::size_t depth)
      : bound(std::move(lanes)), sampler(bound->lanes, bound->fields, settings, prioritized), feed(sampler, depth) {}
  void refuse_prefetch() const {
    check();
    if (feed.depth()) throw Refused("the state of a prefetching replay is ahead of its batches; use prefetch=0.");
  }
  ~BoundSampler() {
    // In a forked child the thread does not exist; joining it would wait for ever.
    if (generation != fork_generation.load()) feed.forget_thread();
    nb::gil_scoped_acquire gil;  // the last tensor may end on a thread of torch's
    blocks.clear();
  }
};

// One filled buffer in somebody's hands. The lease and every tensor made from it share this; the end of the last gives it back.
struct Lent {
  std::shared_ptr<BoundSampler> owner;
  int index;

  Lent(std::shared_ptr<BoundSampler> sampler, int i) : owner(std::move(sampler)), index(i) {}
  Lent(const Lent&) = delete;
  ~Lent() {
    if (owner->generation == fork_generation.load()) owner->feed.release(index);
  }
};

// DLPack's managed tensor: how a tensor reaches torch without numpy, which takes twice as long (0.7 against 1.3 us each).
struct Exported {
  nb::dlpack::dltensor tensor;
  std::shared_ptr<Lent>* context;
  void (*deleter)(Exported*);

  static void end(Exported* self) {  // on any thread, with or without the GIL
    delete self->context;
    delete self;
  }
  static void end_unused(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor")) end(static_cast<Exported*>(PyCapsule_GetPointer(capsule, "dltensor")));
  }
};

struct Lease {
  std::shared_ptr<Lent> lent;
  char* at;
  std::size_t bytes;

  nb::object tensor(std::size_t number) const {
    LentArray& view = lent->owner->views.at(number);
    nb::dlpack::dltensor tensor{at + view.offset, {nb::device::cpu::value, 0}, i32(view.shape.size()), view.type,
                                view.shape.data(), view.strides.data(), 0};
    auto* made = new Exported{tensor, new std::shared_ptr<Lent>(lent), &Exported::end};
    return nb::steal(PyCapsule_New(made, "dltensor", &Exported::end_unused));
  }

  static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    Lease* lease = nb::inst_ptr<Lease>(self);
    return PyBuffer_FillInfo(view, self, lease->at, Py_ssize_t(lease->bytes), 0, flags);
  }
};

static PyType_Slot lease_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&Lease::get_buffer)}, {0, nullptr}};

// Offsets in the block: per field now, then per observation field next, then the columns of BatchOut in order.
static void add_buffer(BoundSampler& self, nb::object block, std::size_t address, const std::vector<std::size_t>& offsets,
                       bool shares_frames) {
  self.check();
  char* at = reinterpret_cast<char*>(address);
  BatchOut out{};
  out.shares_frames = shares_frames;
  auto offset = offsets.begin();
  const auto next = [&] { return at + *offset++; };
  for (std::size_t f = 0; f < self.bound->fields.size(); ++f) out.now.push_back(next());
  for (const Field& field : self.bound->fields) out.next.push_back(field.is_observation ? next() : nullptr);
  for (float** column : {&out.reward, &out.discount, &out.weight, &out.chance}) *column = reinterpret_cast<float*>(next());
  for (i64** column : {&out.steps, &out.lane, &out.row, &out.version, &out.age})
    *column = reinterpret_cast<i64*>(next());
  self.feed.add_buffer(out);
  self.blocks.push_back(std::move(block));
}

// The arrays of a buffer in the order of their numbers: offset, numpy's letter, item size, shape, strides in items.
static void describe(BoundSampler& self,
                     const std::vector<std::tuple<std::size_t, std::string, std::size_t, std::vector<i64>, std::vector<i64>>>& arrays) {
  const auto code = [](char kind) {
    using nb::dlpack::dtype_code;
    return kind == 'f' ? dtype_code::Float : kind == 'i' ? dtype_code::Int : kind == 'u' ? dtype_code::UInt : dtype_code::Bool;
  };
  for (const auto& [offset, kind, itemsize, shape, strides] : arrays)
    self.views.push_back(
        {offset, {std::uint8_t(code(kind.at(0))), std::uint8_t(8 * itemsize), 1}, shape, strides});
}

static nb::object take(std::shared_ptr<BoundSampler> self, double beta, double timeout_s, std::size_t bytes) {
  self->check();
  const i64 until = deadline(timeout_s);
  check_signals();
  int index;
  {
    nb::gil_scoped_release free;
    index = self->feed.take(until, SignalCheck{});
    if (index >= 0) self->sampler.weigh(self->feed.buffer(index), beta);
  }
  raise_pending();
  if (index == Feed<NativePolicy>::none) return nb::none();
  if (index == Feed<NativePolicy>::late)
    throw Refused("no batch was ready within " + std::to_string(timeout_s) + " s.");
  char* at = self->feed.buffer(index).now[0];
  return nb::cast(new Lease{std::make_shared<Lent>(std::move(self), index), at, bytes}, nb::rv_policy::take_ownership);
}

static void update(BoundSampler& self, const Lease& lease, nb::handle priorities) {
  self.check();
  const std::size_t n = self.sampler.settings().rows();
  const Array priority(priorities, "priorities", {'f', 4}, i64(n));
  check_priorities(priority.data<float>(), i64(n));
  if (lease.lent->owner.get() != &self) throw Refused("this batch was drawn from another replay.");
  nb::gil_scoped_release free;
  self.feed.post(lease.lent->index, {priority.data<float>(), priority.data<float>() + n});
}

// The same from errors that lie in several pieces, as `addresses` of equally many floats. One that is no number counts as 0; `least`
// is added to each, so that every row keeps a chance.
static void update_pieces(BoundSampler& self, const Lease& lease, const std::vector<std::uintptr_t>& addresses, float least) {
  self.check();
  const std::size_t n = self.sampler.settings().rows(), each = n / std::max<std::size_t>(addresses.size(), 1);
  if (each * addresses.size() != n)
    throw Refused(std::to_string(addresses.size()) + " pieces do not make a batch of " + std::to_string(n) + ".");
  if (lease.lent->owner.get() != &self) throw Refused("this batch was drawn from another replay.");
  nb::gil_scoped_release free;
  std::vector<float> priority(n);
  float* to = priority.data();
  for (const std::uintptr_t address : addresses) {
    const float* errors = reinterpret_cast<const float*>(address);
    for (std::size_t i = 0; i < each; ++i) to[i] = (errors[i] >= 0 && errors[i] <= FLT_MAX ? errors[i] : 0.0f) + least;
    to += each;
  }
  self.feed.post(lease.lent->index, std::move(priority));
}

void bind_sampler(nb::module_& m) {
  nb::class_<Lease>(m, "Lease", nb::type_slots(lease_slots))
      .def("tensor", &Lease::tensor, nb::arg("number"))
      .def("posts_since", [](const Lease& self) { return self.lent->owner->feed.posts_since(self.lent->index); })
      .def_prop_ro("address", [](const Lease& self) { return reinterpret_cast<std::uintptr_t>(self.at); });

  nb::class_<BoundSampler>(m, "Sampler")
      .def_static("make",
                  [](std::shared_ptr<BoundLanes> lanes, std::size_t batch_size, std::size_t n_step, double gamma,
                     std::size_t stack, bool pad_with_zeros, double alpha, bool prioritized, u64 seed, std::size_t prefetch,
                     std::size_t updates) {
                    lanes->check();
                    return std::make_shared<BoundSampler>(
                        lanes, SampleSettings{batch_size, n_step, gamma, stack, pad_with_zeros, alpha, seed, updates}, prioritized,
                        prefetch);
                  },
                  nb::arg("lanes"), nb::arg("batch_size"), nb::arg("n_step"), nb::arg("gamma"), nb::arg("stack"),
                  nb::arg("pad_with_zeros"), nb::arg("alpha"), nb::arg("prioritized"), nb::arg("seed"), nb::arg("prefetch"),
                  nb::arg("updates"))
      .def("add_buffer", &add_buffer, nb::arg("block"), nb::arg("address"), nb::arg("offsets"),
           nb::arg("shares_frames"))
      .def("describe", &describe, nb::arg("arrays"))
      .def("take", &take, nb::arg("beta"), nb::arg("timeout_s"), nb::arg("num_bytes"),
           nb::sig("def take(self, beta: float, timeout_s: float, num_bytes: int) -> Lease | None"))
      .def("update", &update, nb::arg("lease"), nb::arg("priorities"))
      .def("update_pieces", &update_pieces, nb::arg("lease"), nb::arg("addresses"), nb::arg("least"))
      .def("stop", [](BoundSampler& self) {
        self.check();
        nb::gil_scoped_release free;
        self.feed.stop();
      })
      .def_prop_rw("prioritized", [](const BoundSampler& self) { return self.sampler.prioritized(); },
                   [](BoundSampler& self, bool on) { self.sampler.set_prioritized(on); })
      .def("distrust_check", [](BoundSampler& self, bool off) { self.sampler.distrust_check(off); })
      .def("keep_ready", [](BoundSampler& self, std::size_t count) { self.feed.keep_ready(count); }, nb::arg("count"))
      .def("random_state", [](BoundSampler& self) {
        self.refuse_prefetch();
        std::vector<u64> state(4);
        nb::gil_scoped_release free;
        self.feed.alone([&] { std::copy_n(self.sampler.random().s, 4, state.begin()); });
        return state;
      })
      .def("set_random_state", [](BoundSampler& self, const std::vector<u64>& state) {
        self.refuse_prefetch();
        if (state.size() != 4) throw Refused("a random state is 4 integers, not " + std::to_string(state.size()) + ".");
        nb::gil_scoped_release free;
        self.feed.alone([&] { std::copy_n(state.begin(), 4, self.sampler.random().s); });
      })
      .def("stats", [](const BoundSampler& self) {
        const auto& s = self.sampler.stats();
        return std::vector<u64>{s.batches.load(), s.redraws.load(), s.rejected.load(), s.stale_priorities.load()};
      });

  nb::class_<SumTree>(m, "SumTree")
      .def("__init__", [](SumTree* self, std::size_t num_leaves) {
        if (num_leaves < 1 || num_leaves >= (u64(1) << 32))
          throw Refused("a sum tree has 1 to 2^32 - 1 leaves, not " + std::to_string(num_leaves) + ".");
        new (self) SumTree(num_leaves);
      }, nb::arg("num_leaves"))
      .def("total", &SumTree::total)
      .def("value", [](const SumTree& self, std::size_t leaf) {
        if (leaf >= self.num_leaves()) throw Refused("leaf " + std::to_string(leaf) + " does not exist.");
        return self.value(leaf);
      })
      .def("update", [](SumTree& self, nb::handle leaves, nb::handle values) {
        const i64 n = Array::length(leaves, "leaves");
        const Array leaf(leaves, "leaves", {'u', 4}, n);
        const Array value(values, "values", {'f', 4}, n);
        check_priorities(value.data<float>(), n);
        for (i64 i = 0; i < n; ++i)
          if (leaf.data<u32>()[i] >= self.num_leaves())
            throw Refused("leaf " + std::to_string(leaf.data<u32>()[i]) + " does not exist.");
        self.update(leaf.data<u32>(), value.data<float>(), std::size_t(n));
      }, nb::arg("leaves"), nb::arg("values"))
      .def("draw", [](const SumTree& self, nb::handle units) {
        const i64 n = Array::length(units, "units");
        const Array unit(units, "units", {'f', 8}, n);
        if (!(self.total() > 0)) throw Refused("every leaf is 0: nothing can be drawn.");
        std::vector<double> offsets(unit.data<double>(), unit.data<double>() + n);
        for (double& offset : offsets) offset *= self.total();
        std::vector<u32> leaves(static_cast<std::size_t>(n));
        self.draw(offsets.data(), leaves.data(), leaves.size());
        return leaves;
      }, nb::arg("units"));
}

}  // namespace fw
