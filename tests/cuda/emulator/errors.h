// SPDX-License-Identifier: Apache-2.0
// What CUDA calls its errors.
#pragma once

namespace emu {

struct ErrorName {
  int number;
  const char* driver;
  const char* runtime;
  const char* text;
};

// The one of "unknown error" for a number that the emulator does not give.
const ErrorName& error_name(int number);

}  // namespace emu
