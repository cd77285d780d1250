// SPDX-License-Identifier: Apache-2.0
// Addresses of all spaces, checked.
#pragma once

#include "ptx_module.h"

namespace emu {

// Where each lane of the mask finds `bytes` bytes at its address. Faults name what is wrong.
// Whether all are neighbours, in the order of the lanes, is returned.
bool locate(Warp& w, const Instr& i, Mask m, std::size_t bytes, std::byte* places[kLanes]);

// A generic address as one lane sees it; nullptr if it has not so many bytes there.
std::byte* place_of(Warp& w, unsigned lane, u64 address, std::size_t bytes);

}  // namespace emu
