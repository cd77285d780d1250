// SPDX-License-Identifier: Apache-2.0
// The text form of protobuf messages as programs write it: one field per line.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nnl/errors.h"

namespace nnl {

// A field of a message: what a descriptor says of it.
struct MessageField {
  std::string name;
  uint32_t number;
  int type;           // its number in FieldDescriptorProto.Type; 0 if nobody reads it here
  std::string once;   // what may stand only once in the message around it, or empty
  std::string inner;  // name of the message in it, or empty
};

// Turns text into the binary form. What is unusual (comments, two fields on a line, unknown names,
// maps, numbers in octal, mistakes) is left to the protobuf package.
// Source: https://protobuf.dev/programming-guides/encoding
class NNL_API MessageText {
 public:
  // Gives the fields of a message by its name; asked once for each message that is met.
  using Describe = std::function<std::vector<MessageField>(const std::string&)>;

  explicit MessageText(Describe describe);
  ~MessageText();
  MessageText(const MessageText&) = delete;
  MessageText& operator=(const MessageText&) = delete;

  // The binary form, or nothing if the text is unusual or wrong.
  std::optional<std::string> encoded(const std::string& message, std::string_view text);

 private:
  struct Field;
  struct Message;

  const Message& known(const std::string& name);

  Describe describe_;
  std::map<std::string, std::unique_ptr<Message>> messages_;
};

}  // namespace nnl
