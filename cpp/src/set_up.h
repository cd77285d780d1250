// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <vector>

namespace nnl {

// While it lives, the kernels that its thread makes leave slow parts of their set-up, such as the
// generation of code, to `finish`, which does them on all threads.
class SetUp {
 public:
  SetUp();
  ~SetUp();
  SetUp(const SetUp&) = delete;
  SetUp& operator=(const SetUp&) = delete;

  // Does what is left. Throws what the first part that fails has thrown.
  void finish();

  // Does a part: now, or in the finish of the SetUp that lives in this thread.
  static void later(std::function<void()> part);

 private:
  std::vector<std::function<void()>> parts_;
  SetUp* outer_;
};

}  // namespace nnl
