// Segment: a block of shared memory without a name.
//
// Contract
//   * All of it is there from the start (posix_fallocate), so no later write can end in SIGBUS. The caller compares the size with
//     what the machine allows first: a kernel that runs out on the way does not refuse, it kills.
//   * It does not depend on the size of /dev/shm.
//   * It lives as long as a process maps it or holds its descriptor: nothing is left when all of them are killed.
//   * Its words are zero at first and start on a page.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "sampler.hpp"

#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25  // the headers may be older than the kernel
#endif

namespace fw {

class Segment {
 public:
  static Segment create(std::size_t bytes, const std::string& name) {
    Segment made;
    made.bytes_ = bytes;
#if defined(__linux__)
    made.fd_ = memfd_create(name.c_str(), MFD_CLOEXEC);
#else
    const std::string path = "/" + name + "." + std::to_string(getpid()) + "." + std::to_string(now_ns() % 1'000'000'000);
    made.fd_ = shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (made.fd_ >= 0) shm_unlink(path.c_str());
#endif
    if (made.fd_ < 0) throw Refused(failed("no shared memory could be made", bytes, errno));
#if defined(__linux__)
    int error;
    while ((error = posix_fallocate(made.fd_, 0, off_t(bytes))) == EINTR) {
    }
    if (error) throw Refused(failed("the machine does not give that much shared memory", bytes, error));
#else
    if (ftruncate(made.fd_, off_t(bytes))) throw Refused(failed("the machine does not give that much", bytes, errno));
#endif
    made.map();
    made.take_large_pages();
    return made;
  }

  // Takes the descriptor over.
  static Segment attach(int fd) {
    Segment made;
    made.fd_ = fd;
    struct stat status;
    if (fstat(fd, &status)) throw Refused(failed("the descriptor is not a segment", 0, errno));
    made.bytes_ = std::size_t(status.st_size);
    made.map();
    return made;
  }

  Segment(Segment&& other) noexcept { *this = std::move(other); }
  Segment& operator=(Segment&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    std::swap(at_, other.at_);
    return *this;
  }
  ~Segment() {
    if (at_) munmap(at_, bytes_);
    if (fd_ >= 0) ::close(fd_);
  }

  int fd() const { return fd_; }
  std::size_t bytes() const { return bytes_; }
  NativePolicy::word* words() const { return static_cast<NativePolicy::word*>(at_); }

 private:
  static constexpr std::size_t large_page = 2 << 20;

  Segment() = default;

  void map() {
    // On a boundary of 2 MB, so that large pages can be used; the reservation is cut down to what is needed.
    const std::size_t space = bytes_ + large_page;
    char* reserved = static_cast<char*>(mmap(nullptr, space, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0));
    if (reserved == MAP_FAILED) throw Refused(failed("the segment could not be mapped", bytes_, errno));
    const std::size_t skip = (large_page - reinterpret_cast<std::uintptr_t>(reserved) % large_page) % large_page;
    const std::size_t pages = (bytes_ + 4095) / 4096 * 4096;
    if (skip) munmap(reserved, skip);
    if (space > skip + pages) munmap(reserved + skip + pages, space - skip - pages);
    at_ = reserved + skip;
    if (mmap(at_, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0) == MAP_FAILED)
      throw Refused(failed("the segment could not be mapped", bytes_, errno));
  }
  // Random rows of 700 MB came in 58 us a batch of 256 with large pages, in 70 us without. Taking them costs up to 2 s a GB, so
  // segments above that do without; their rows are frames as a rule, of which each fills more than a small page.
  void take_large_pages() const {
#if defined(MADV_COLLAPSE)
    if (bytes_ <= std::size_t(1) << 30) madvise(at_, bytes_, MADV_COLLAPSE);  // a kernel before 6.1 says no; that is no loss
#endif
  }

  static std::string failed(const char* what, std::size_t bytes, int error) {
    return std::string(what) + " (" + std::to_string(bytes) + " bytes): " + std::strerror(error) + ".";
  }

  int fd_ = -1;
  std::size_t bytes_ = 0;
  void* at_ = nullptr;
};

}  // namespace fw
