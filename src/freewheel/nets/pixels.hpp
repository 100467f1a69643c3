// Bytes of pictures as floats 0..1 with the channels of a pixel side by side: [B, C, H, W] of bytes, the pixels of each picture
// contiguous, becomes [B, H, W, C] of float32 or bf16.
//
// This text becomes part of a package; FREEWHEEL_PIXELS_TARGET and FREEWHEEL_PIXELS_THREADS are set before it.
#pragma GCC push_options
#pragma GCC optimize("O3,tree-loop-vectorize")  // the rest of a package is compiled without
#pragma GCC target(FREEWHEEL_PIXELS_TARGET)

namespace freewheel_pixels {

constexpr int64_t kShared = 1 << 17;  // bytes, some 20 us of them, from which on threads share a batch

inline void put(float& to, float value) { to = value; }

// To the nearest, and to the even one of two that are as near; a byte is never NaN.
inline void put(uint16_t& to, float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  to = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The channels are known to the compiler, which makes whole vectors of neighbouring pixels out of this. In line, as a template that
// is made where it is called has the options of that place.
template <int kChannels, class Number>
inline __attribute__((always_inline)) void turn(const uint8_t* from, int64_t channel, Number* to, int64_t pixels) {
  for (int64_t i = 0; i < pixels; ++i)
    for (int c = 0; c < kChannels; ++c) put(to[i * kChannels + c], static_cast<float>(from[c * channel + i]) / 255.0f);
}

template <class Number>
inline __attribute__((always_inline)) void turn_any(const uint8_t* from, int64_t channel, Number* to, int64_t pixels, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < pixels; ++i) put(to[i * channels + c], static_cast<float>(from[c * channel + i]) / 255.0f);
}

template <class Number>
inline __attribute__((always_inline)) void turn_one(const uint8_t* from, int64_t channel, Number* to, int64_t pixels, int64_t channels) {
  switch (channels) {
    case 1: return turn<1>(from, channel, to, pixels);
    case 2: return turn<2>(from, channel, to, pixels);
    case 3: return turn<3>(from, channel, to, pixels);
    case 4: return turn<4>(from, channel, to, pixels);
    case 8: return turn<8>(from, channel, to, pixels);
    default: return turn_any(from, channel, to, pixels, channels);
  }
}

void picture(const uint8_t* from, int64_t channel, float* to, int64_t pixels, int64_t channels) {
  turn_one(from, channel, to, pixels, channels);
}

void picture(const uint8_t* from, int64_t channel, uint16_t* to, int64_t pixels, int64_t channels) {
  turn_one(from, channel, to, pixels, channels);
}

template <class Number>
AOTITorchError turn_batch(AtenTensorHandle given, int32_t dtype, AtenTensorHandle* result) {
  int64_t *sizes, *strides;
  void *from, *to;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(given, &sizes));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(given, &strides));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(given, &from));
  const int64_t rows = sizes[0], channels = sizes[1], pixels = sizes[2] * sizes[3], each = channels * pixels;
  const int64_t own[] = {each, 1, channels * sizes[3], channels};
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(4, sizes, own, dtype, aoti_torch_device_type_cpu(), 0, result));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(*result, &to));
  const int64_t row = strides[0], channel = strides[1];
#pragma omp parallel for num_threads(FREEWHEEL_PIXELS_THREADS) schedule(static) if (FREEWHEEL_PIXELS_THREADS > 1 && rows * each >= kShared)
  for (int64_t i = 0; i < rows; ++i)
    picture(static_cast<const uint8_t*>(from) + i * row, channel, static_cast<Number*>(to) + i * each, pixels, channels);
  return AOTI_TORCH_SUCCESS;
}

}  // namespace freewheel_pixels
#pragma GCC pop_options
