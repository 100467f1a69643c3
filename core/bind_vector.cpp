// A step of a vector env: read, checked and, where an ended lane resets in the step after, parted in one call.
#include <type_traits>
#include <vector>

#include "plain.hpp"

namespace fw {

// What read() says in place of how many episodes are over.
enum Unread : int {
  not_plain = -1,  // the caller looks closely
  has_gaps = -2,   // the caller closes them and asks again
  was_moved = -3,  // nothing is over, and the rows are in `whole`: the env gave columns
};

namespace {

using Arrays = nb::typed<nb::tuple, nb::object, nb::ellipsis>;

bool is_finite(const void* rows, std::size_t num_bytes, char kind) {
  return kind == 'f' ? all_finite<float>(rows, num_bytes) : kind != 'd' || all_finite<double>(rows, num_bytes);
}

// The rows of `lanes`, one after the other. Sizes that are known when it is compiled are copied without a call.
template <std::size_t size>
void gather_sized(const char* from, const std::vector<i64>& lanes, char* to) {
  for (const i64 lane : lanes) {
    std::memcpy(to, from + std::size_t(lane) * size, size);
    to += size;
  }
}

void gather(const char* from, std::size_t size, const std::vector<i64>& lanes, char* to) {
  switch (size) {
    case 1: return gather_sized<1>(from, lanes, to);
    case 4: return gather_sized<4>(from, lanes, to);
    case 8: return gather_sized<8>(from, lanes, to);
    case 16: return gather_sized<16>(from, lanes, to);
    default:
      for (const i64 lane : lanes) {
        std::memcpy(to, from + std::size_t(lane) * size, size);
        to += size;
      }
  }
}

// Columns without gaps, few enough to be known when it is compiled: 0.2 to 0.3 us in place of 0.5 for 128 rows of 4 floats.
template <class T, std::size_t columns>
void columns_to_rows(const Py_buffer& from, T* to) {
  const T* column[columns];
  for (std::size_t j = 0; j < columns; ++j)
    column[j] = reinterpret_cast<const T*>(static_cast<const char*>(from.buf) + Py_ssize_t(j) * from.strides[1]);
  for (Py_ssize_t i = 0; i < from.shape[0]; ++i)
    for (std::size_t j = 0; j < columns; ++j) *to++ = column[j][i];
}

template <class T>
void to_rows(const Py_buffer& from, T* to) {
  // Arrays whose numbers do not lie where numbers of their size do have another format and never come here.
  if (from.strides[0] == Py_ssize_t(sizeof(T))) switch (from.shape[1]) {
      case 2: return columns_to_rows<T, 2>(from, to);
      case 3: return columns_to_rows<T, 3>(from, to);
      case 4: return columns_to_rows<T, 4>(from, to);
      case 6: return columns_to_rows<T, 6>(from, to);
      case 8: return columns_to_rows<T, 8>(from, to);
      default: break;
    }
  const auto* base = static_cast<const char*>(from.buf);
  for (Py_ssize_t i = 0; i < from.shape[0]; ++i)
    for (Py_ssize_t j = 0; j < from.shape[1]; ++j)
      std::memcpy(to++, base + i * from.strides[0] + j * from.strides[1], sizeof(T));
}

// Columns, as many a vector env keeps them, to rows.
bool move_to_rows(const Py_buffer& from, void* to) {
  if (from.ndim != 2) return false;
  switch (from.itemsize) {
    case 4: return to_rows(from, static_cast<std::uint32_t*>(to)), true;
    case 8: return to_rows(from, static_cast<std::uint64_t*>(to)), true;
    default: return false;
  }
}

}  // namespace

// Contract: the arrays it writes into are the caller's, who made them for all lanes; read() fills the first rows of each. Nothing of
// them counts when it gives not_plain or has_gaps.
class StepReader {
 public:
  // `whole` has the shape and type of all lanes' observations. Those that go on: number, row, reward, first. Those that are over:
  // number, row, reward, terminated, truncated. `begun` is the step with which each lane's episode began.
  StepReader(nb::handle whole, nb::handle reward, const Arrays& going, const Arrays& ended, nb::handle begun) {
    open(whole_, whole);
    if (whole_.buffer.ndim < 1) throw Refused("a StepReader needs a row per lane.");
    n_ = std::size_t(whole_.buffer.shape[0]);
    row_ = n_ ? std::size_t(whole_.buffer.len) / n_ : 0;
    is_known_ = is_known(whole_.buffer.format);
    const std::size_t sizes[5] = {sizeof(i64), row_, sizeof(float), 1, 1};
    if (going.size() != 4 || ended.size() != 5) throw Refused("a StepReader writes four arrays of those that go on and five of the others.");
    for (std::size_t k = 0; k < 4; ++k) open_sized(going_[k], going[k], sizes[k]);
    for (std::size_t k = 0; k < 5; ++k) open_sized(ended_[k], ended[k], sizes[k]);
    open_sized(reward_, reward, sizeof(float));
    open_sized(begun_, begun, sizeof(i64));
    lanes_[0].reserve(n_), lanes_[1].reserve(n_);
  }

  // `first` tells whose step was a reset, `over` becomes which episodes are over now; gives how many, or an Unread.
  int read(nb::handle observed, nb::handle rewards, nb::handle terminated, nb::handle truncated, nb::handle first, nb::handle over,
           i64 step) {
    const Numpy& numpy = Numpy::get();
    View resets, now_over, rows, given, ended, cut;
    if (!resets.open(first.ptr(), PyBUF_C_CONTIGUOUS) || !now_over.open(over.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) ||
        std::size_t(resets.buffer.len) != n_ || std::size_t(now_over.buffer.len) != n_)
      throw Refused("first and over must be contiguous, with a byte per lane.");
    if (!is_known_ || !open_array(rows, observed, numpy, PyBUF_STRIDES) || !open_array(given, rewards, numpy, PyBUF_C_CONTIGUOUS) ||
        !open_array(ended, terminated, numpy, PyBUF_C_CONTIGUOUS) || !open_array(cut, truncated, numpy, PyBUF_C_CONTIGUOUS))
      return not_plain;
    if (!has_shape_of(rows.buffer, whole_.buffer) || !is_column(ended.buffer, '?') || !is_column(cut.buffer, '?')) return not_plain;
    const void* source = rows.buffer.buf;
    const bool is_moved = !PyBuffer_IsContiguous(&rows.buffer, 'C');
    if (is_moved) {
      if (!move_to_rows(rows.buffer, whole_.buffer.buf)) return has_gaps;
      source = whole_.buffer.buf;
    }
    if (!is_finite(source, n_ * row_, whole_.buffer.format[0])) return not_plain;
    const auto look_as = [&]<class T>(T) { return look<T>(given.buffer, ended.buffer, cut.buffer, resets.buffer, now_over.buffer); };
    const bool fits = is_column(given.buffer, 'd')   ? look_as(double{})
                      : is_column(given.buffer, 'f') ? look_as(float{})
                      : is_column(given.buffer, 'i') ? look_as(std::int32_t{})
                      : is_column(given.buffer, 'l') ? look_as(i64{})
                                                     : false;
    if (!fits) return not_plain;
    if (!num_over_) return is_moved ? int(was_moved) : 0;
    part_lanes(static_cast<const std::uint8_t*>(now_over.buffer.buf));
    const void* going_from[3] = {source, reward_.buffer.buf, resets.buffer.buf};
    const void* ended_from[4] = {source, reward_.buffer.buf, ended.buffer.buf, cut.buffer.buf};
    part(lanes_[0], going_from, going_, 3);
    part(lanes_[1], ended_from, ended_, 4);
    for (const i64 lane : lanes_[1]) static_cast<i64*>(begun_.buffer.buf)[lane] = step;
    return int(num_over_);
  }

 private:
  static void open(View& view, nb::handle array) {
    if (!view.open(array.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE))
      throw Refused("a StepReader writes into contiguous arrays.");
  }
  void open_sized(View& view, nb::handle array, std::size_t size) const {
    open(view, array);
    if (std::size_t(view.buffer.len) != n_ * size) throw Refused("a StepReader needs arrays with a row for every lane.");
  }
  static bool open_array(View& view, nb::handle object, const Numpy& numpy, int how) {
    return PyObject_TypeCheck(object.ptr(), numpy.array) && view.open(object.ptr(), how | PyBUF_FORMAT);
  }
  bool is_column(const Py_buffer& column, char kind) const {
    return column.ndim == 1 && std::size_t(column.shape[0]) == n_ && column.format[0] == kind && !column.format[1];
  }
  static bool has_shape_of(const Py_buffer& a, const Py_buffer& b) {
    return a.ndim == b.ndim && std::strcmp(a.format, b.format) == 0 && std::equal(a.shape, a.shape + a.ndim, b.shape);
  }

  // Rewards, 0 for a reset, and who is over; false where one does not fit float32.
  template <class T>
  bool look(const Py_buffer& given, const Py_buffer& ended, const Py_buffer& cut, const Py_buffer& resets, const Py_buffer& over) {
    const auto* value = static_cast<const T*>(given.buf);
    const auto *a = static_cast<const std::uint8_t*>(ended.buf), *b = static_cast<const std::uint8_t*>(cut.buf);
    const auto* was_reset = static_cast<const std::uint8_t*>(resets.buf);
    auto* told = static_cast<float*>(reward_.buffer.buf);
    auto* is_over = static_cast<std::uint8_t*>(over.buf);
    bool fits = true;
    num_over_ = 0;
    for (std::size_t i = 0; i < n_; ++i) {
      if constexpr (std::is_floating_point_v<T>) fits &= std::abs(value[i]) <= T(std::numeric_limits<float>::max());
      told[i] = was_reset[i] ? 0.0f : float(value[i]);
      is_over[i] = std::uint8_t((a[i] | b[i]) & !was_reset[i]);
      num_over_ += is_over[i];
    }
    return fits;
  }

  // Without a branch: who is over is hard to guess.
  void part_lanes(const std::uint8_t* is_over) {
    lanes_[0].resize(n_), lanes_[1].resize(n_);
    std::size_t count[2] = {0, 0};
    for (std::size_t i = 0; i < n_; ++i) {
      lanes_[0][count[0]] = lanes_[1][count[1]] = i64(i);
      count[1] += is_over[i], count[0] += !is_over[i];
    }
    lanes_[0].resize(count[0]), lanes_[1].resize(count[1]);
  }

  void part(const std::vector<i64>& lanes, const void* const* from, View* to, std::size_t count) const {
    const std::size_t sizes[4] = {row_, sizeof(float), 1, 1};
    std::memcpy(to[0].buffer.buf, lanes.data(), lanes.size() * sizeof(i64));
    for (std::size_t k = 0; k < count; ++k)
      gather(static_cast<const char*>(from[k]), sizes[k], lanes, static_cast<char*>(to[k + 1].buffer.buf));
  }

  View whole_, reward_, begun_, going_[4], ended_[5];
  std::size_t n_ = 0, row_ = 0, num_over_ = 0;
  bool is_known_ = false;
  std::vector<i64> lanes_[2];  // those that go on, those that are over
};

void bind_vector(nb::module_& m) {
  nb::class_<StepReader>(m, "StepReader")
      .def(nb::init<nb::handle, nb::handle, const Arrays&, const Arrays&, nb::handle>(), nb::arg("whole"), nb::arg("reward"),
           nb::arg("going"), nb::arg("ended"), nb::arg("begun"))
      .def("read", &StepReader::read, nb::arg("observed"), nb::arg("rewards"), nb::arg("terminated"), nb::arg("truncated"),
           nb::arg("first"), nb::arg("over"), nb::arg("step"));
}

}  // namespace fw
