// SPDX-License-Identifier: Apache-2.0
// What the emulated device is: an NVIDIA H200.
#pragma once

#include <cstddef>

namespace emu {

constexpr int kVersion = 13000;  // of the driver and of the runtime
constexpr int kMajor = 9, kMinor = 0;
constexpr int kMultiprocessors = 132;
constexpr int kWarp = 32;
constexpr int kThreadsPerBlock = 1024, kThreadsPerMultiprocessor = 2048;
constexpr int kBlocksPerMultiprocessor = 32;
constexpr int kBlock[3] = {1024, 1024, 64};
constexpr int kGrid[3] = {2147483647, 65535, 65535};
constexpr int kRegisters = 65536;
constexpr std::size_t kShared = 48 << 10;         // bytes of a block
constexpr std::size_t kSharedOptIn = 227 << 10;   // if its function allows for it
constexpr std::size_t kSharedOfAll = 228 << 10;   // of a multiprocessor
constexpr std::size_t kSharedReserved = 1 << 10;  // of each block

}  // namespace emu
