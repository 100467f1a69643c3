// Products of small float32 matrices for compiled updates: C [M, N] = A [M, K] B [K, N], C contiguous, A and B of any strides.
//
// Eight rows of C and two vectors of each stay in registers while K passes. A is read one number at a time, so that its strides do not
// matter; B is read by rows, and copied to rows of whole vectors first where it is not so.
//
// This text becomes part of a package; FREEWHEEL_VECTOR, FREEWHEEL_TARGET and FREEWHEEL_THREADS are set before it.
#pragma GCC push_options
#pragma GCC optimize("O3,fp-contract=fast")  // the rest of a package is compiled without fused additions
#pragma GCC target(FREEWHEEL_TARGET)

namespace freewheel {

constexpr int64_t kVector = FREEWHEEL_VECTOR;  // floats in a register
constexpr int64_t kDepth = 256;                // of K at a time: what is read of B again and again stays in the nearest cache
constexpr int64_t kNarrow = 4, kNarrowDepth = 1024;
constexpr int64_t kThreads = FREEWHEEL_THREADS;
constexpr int64_t kShared = 1 << 22;  // multiplications, some 70 us of them, from which on threads share a product
using Vector = float __attribute__((vector_size(sizeof(float) * FREEWHEEL_VECTOR), aligned(4), may_alias));

struct Strided {
  const float* data;
  int64_t row, column;
};

template <int kRows, int kVectors>
inline __attribute__((always_inline)) void tile(int64_t depth, Strided a, const float* b, int64_t b_row, float* c, int64_t c_row,
                                                int64_t width, bool adds) {
  Vector sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) sums[i][j] = Vector{};
  for (int64_t k = 0; k < depth; ++k) {
    Vector row[kVectors];
    for (int j = 0; j < kVectors; ++j) row[j] = *reinterpret_cast<const Vector*>(b + k * b_row + j * kVector);
    for (int i = 0; i < kRows; ++i) {
      const float one = a.data[i * a.row + k * a.column];
      for (int j = 0; j < kVectors; ++j) sums[i][j] += one * row[j];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    float* to = c + i * c_row;
    if (width == kVectors * kVector) {
      for (int j = 0; j < kVectors; ++j) {
        Vector& out = *reinterpret_cast<Vector*>(to + j * kVector);
        out = adds ? out + sums[i][j] : sums[i][j];
      }
    } else {
      Vector line[kVectors];  // a copy: sums whose address is taken leave their registers
      for (int j = 0; j < kVectors; ++j) line[j] = sums[i][j];
      const float* from = reinterpret_cast<const float*>(line);
      for (int64_t n = 0; n < width; ++n) to[n] = adds ? to[n] + from[n] : from[n];
    }
  }
}

template <int kVectors>
inline void panel(int64_t rows, int64_t depth, Strided a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t width,
                  bool adds) {
  int64_t m = 0;
  const auto at = [&] { return Strided{a.data + m * a.row, a.row, a.column}; };
  for (; rows - m >= 8; m += 8) tile<8, kVectors>(depth, at(), b, b_row, c + m * c_row, c_row, width, adds);
  if (rows - m >= 4) {
    tile<4, kVectors>(depth, at(), b, b_row, c + m * c_row, c_row, width, adds);
    m += 4;
  }
  if (rows - m >= 2) {
    tile<2, kVectors>(depth, at(), b, b_row, c + m * c_row, c_row, width, adds);
    m += 2;
  }
  if (rows - m == 1) tile<1, kVectors>(depth, at(), b, b_row, c + m * c_row, c_row, width, adds);
}

using Eight = float __attribute__((vector_size(32), aligned(4), may_alias));
using Places = int __attribute__((vector_size(32)));

// Eight rows of eight floats become columns.
inline __attribute__((always_inline)) void turn(float* to, int64_t to_row, const float* from, int64_t from_row) {
  Eight a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = *reinterpret_cast<const Eight*>(from + i * from_row);
  for (int i = 0; i < 8; i += 2) {
    b[i] = __builtin_shuffle(a[i], a[i + 1], Places{0, 8, 1, 9, 4, 12, 5, 13});
    b[i + 1] = __builtin_shuffle(a[i], a[i + 1], Places{2, 10, 3, 11, 6, 14, 7, 15});
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = __builtin_shuffle(b[i + j], b[i + j + 2], Places{0, 1, 8, 9, 4, 5, 12, 13});
      a[i + 2 * j + 1] = __builtin_shuffle(b[i + j], b[i + j + 2], Places{2, 3, 10, 11, 6, 7, 14, 15});
    }
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<Eight*>(to + i * to_row) = __builtin_shuffle(a[i], a[i + 4], Places{0, 1, 2, 3, 8, 9, 10, 11});
    *reinterpret_cast<Eight*>(to + (i + 4) * to_row) = __builtin_shuffle(a[i], a[i + 4], Places{4, 5, 6, 7, 12, 13, 14, 15});
  }
}

// `depth` rows of B as rows of `width` floats and zeros up to `padded`.
inline void pack(float* to, Strided b, int64_t depth, int64_t width, int64_t padded) {
  int64_t done = 0;  // columns
  if (b.row == 1) {  // a transposed matrix, whose rows are our columns
    for (; width - done >= 8; done += 8) {
      int64_t k = 0;
      for (; depth - k >= 8; k += 8) turn(to + k * padded + done, padded, b.data + k + done * b.column, b.column);
      for (; k < depth; ++k)
        for (int64_t n = done; n < done + 8; ++n) to[k * padded + n] = b.data[k + n * b.column];
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t n = done; n < width; ++n) to[k * padded + n] = b.data[k * b.row + n * b.column];
    for (int64_t n = width; n < padded; ++n) to[k * padded + n] = 0;
  }
}

// A few columns, as the last layer has: vectors run along K, since rows of C would leave most of a register empty. 256 x 256 with
// 256 x 1 took 19 us that way and takes 3 us this way, with 256 x 2 19 and 7.
template <int kColumns>
inline void narrow(int64_t rows, int64_t depth, Strided a, const float* b, float* c) {
  const int64_t whole = depth / kVector * kVector;
  for (int64_t m = 0; m < rows; m += 4) {
    Vector sums[4][kColumns];
    const float* row[4];
    for (int i = 0; i < 4; ++i) {
      row[i] = a.data + std::min(m + i, rows - 1) * a.row;  // beyond the last row: that row again
      for (int n = 0; n < kColumns; ++n) sums[i][n] = Vector{};
    }
    for (int64_t k = 0; k < whole; k += kVector)
      for (int i = 0; i < 4; ++i) {
        const Vector x = *reinterpret_cast<const Vector*>(row[i] + k);
        for (int n = 0; n < kColumns; ++n) sums[i][n] += x * *reinterpret_cast<const Vector*>(b + n * depth + k);
      }
    for (int64_t i = 0; i < std::min<int64_t>(rows - m, 4); ++i)
      for (int n = 0; n < kColumns; ++n) {
        float line[kVector];
        *reinterpret_cast<Vector*>(line) = sums[i][n];
        for (int64_t half = kVector / 2; half > 0; half /= 2)
          for (int64_t j = 0; j < half; ++j) line[j] += line[j + half];
        for (int64_t k = whole; k < depth; ++k) line[0] += row[i][k] * b[n * depth + k];
        c[(m + i) * kColumns + n] = line[0];
      }
  }
}

inline bool multiply_narrow(int64_t rows, int64_t columns, int64_t depth, Strided a, Strided b, float* c) {
  if (columns > kNarrow || depth > kNarrowDepth || depth < kVector || a.column != 1) return false;
  alignas(64) float turned[kNarrow * kNarrowDepth];
  for (int64_t n = 0; n < columns; ++n)
    for (int64_t k = 0; k < depth; ++k) turned[n * depth + k] = b.data[k * b.row + n * b.column];
  if (columns == 1) narrow<1>(rows, depth, a, turned, c);
  if (columns == 2) narrow<2>(rows, depth, a, turned, c);
  if (columns == 3) narrow<3>(rows, depth, a, turned, c);
  if (columns == 4) narrow<4>(rows, depth, a, turned, c);
  return true;
}

inline void multiply(int64_t rows, int64_t columns, int64_t depth, Strided a, Strided b, float* c) {
  if (multiply_narrow(rows, columns, depth, a, b, c)) return;
  alignas(64) float packed[kDepth * 2 * kVector];
  for (int64_t k = 0; k < depth; k += kDepth) {
    const int64_t deep = std::min(depth - k, kDepth);
    const Strided from{a.data + k * a.column, a.row, a.column};
    for (int64_t n = 0; n < columns; n += 2 * kVector) {
      const int64_t width = std::min(columns - n, 2 * kVector), padded = width > kVector ? 2 * kVector : kVector;
      const float* rows_of_b = b.data + k * b.row + n * b.column;
      int64_t b_row = b.row;
      if (b.column != 1 || width != padded) {
        pack(packed, {rows_of_b, b.row, b.column}, deep, width, padded);
        rows_of_b = packed;
        b_row = padded;
      }
      if (padded == kVector)
        panel<1>(rows, deep, from, rows_of_b, b_row, c + n, columns, width, k > 0);
      else
        panel<2>(rows, deep, from, rows_of_b, b_row, c + n, columns, width, k > 0);
    }
  }
}

inline void multiply_shared(int64_t rows, int64_t columns, int64_t depth, Strided a, Strided b, float* c) {
  if (kThreads == 1 || rows < 8 * kThreads || rows * columns * depth < kShared) return multiply(rows, columns, depth, a, b, c);
  const int64_t each = (rows / kThreads + 7) / 8 * 8;
#pragma omp parallel for num_threads(FREEWHEEL_THREADS) schedule(static)
  for (int64_t first = 0; first < rows; first += each)
    multiply(std::min(rows - first, each), columns, depth, {a.data + first * a.row, a.row, a.column}, b, c + first * columns);
}

}  // namespace freewheel

extern "C" AOTITorchError aoti_torch_cpu_freewheel_mm(AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle* result) {
  int64_t *a_sizes, *b_sizes, *a_strides, *b_strides;
  void *a_data, *b_data, *c_data;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(a, &a_sizes));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(b, &b_sizes));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(a, &a_strides));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(b, &b_strides));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(a, &a_data));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(b, &b_data));
  const int64_t sizes[] = {a_sizes[0], b_sizes[1]}, strides[] = {b_sizes[1], 1};
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, sizes, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, result));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(*result, &c_data));
  freewheel::multiply_shared(a_sizes[0], b_sizes[1], a_sizes[1], {static_cast<const float*>(a_data), a_strides[0], a_strides[1]},
                      {static_cast<const float*>(b_data), b_strides[0], b_strides[1]}, static_cast<float*>(c_data));
  return AOTI_TORCH_SUCCESS;
}
#pragma GCC pop_options
