// SPDX-License-Identifier: Apache-2.0
// Turns a text into a Module::Text.
#pragma once

#include "ptx_module.h"
#include "ptx_text.h"

namespace emu {

// What a name stands for.
struct Symbol {
  enum Kind : u8 { kRegister, kParam, kLocal, kShared, kDynamic, kGlobal, kFunction } kind;
  char shape = 'n';  // of a register: p, n, w
  u32 slot = 0;      // of a register
  u64 value = 0;     // an address in its space; the number of a function
  std::size_t bytes = 0, align = 1;
};

// An operand as it is written.
struct Value {
  enum Kind : u8 {
    kNothing,
    kRegister,
    kNumber,
    kReal32,
    kReal64,
    kAddress,
    kVector,
    kSpecial
  } kind = kNothing;
  Symbol symbol{};      // of a register, or where an address begins
  std::string special;  // %tid.x
  bool has_base = false, negated = false, variable = false;
  u64 bits = 0;  // a number, or what is added to an address
  std::vector<Value> parts;
};

struct Function {
  std::string name;
  bool defined = false;
  u32 entry = 0;
  std::vector<std::pair<u64, std::size_t>> results, arguments;  // where in local memory, bytes
};

class Parser {
 public:
  explicit Parser(std::string_view ptx)
      : text_(std::make_unique<Module::Text>()), tokens_(tokens_of(ptx)) {
    text_->lines = lines_of(ptx);
    scopes_.emplace_back();
  }
  std::unique_ptr<Module::Text> run();

 private:
  // ---- tokens ----
  const Token& peek(std::size_t k = 0) const {
    return tokens_[std::min(at_ + k, tokens_.size() - 1)];
  }
  const Token& take() { return tokens_[at_ < tokens_.size() - 1 ? at_++ : at_]; }
  bool accept(std::string_view t);
  void expect(std::string_view t);
  std::string word();
  u64 number();  // with its sign
  void skip_statement();
  [[noreturn]] void refuse(const std::string& what, u32 line = 0) const;

  // ---- names and places ----
  const Symbol* find(const std::string& name) const;
  Symbol& define(const std::string& name, Symbol symbol);
  u32 place(char shape);
  u32 constant(char shape, u64 value);
  u32 special(const std::string& name, char shape);
  u64 local(std::size_t bytes, std::size_t align);
  u32 dynamic_shared(char shape);

  // ---- declarations: ptx_declare.cpp ----
  struct Declared {
    std::string name;
    Type type;
    std::size_t bytes, align;
    bool open;  // of unknown length: name[]
  };
  Declared declared();
  void variable(const std::string& space, bool is_extern);
  void initialise(const Declared& d, std::byte* data, std::size_t bytes);
  void registers();
  void entry();
  void function();
  std::vector<std::pair<u64, std::size_t>> formals();
  void directives();
  void body();
  void finish_body();

  // ---- instructions: ptx_parse.cpp ----
  void statement();
  void instruction();
  bool control(const Name& n, Instr& i);
  void call(Instr i);
  void resolve_calls();
  std::vector<Value> operands();
  Value operand();
  Value address();
  Value resolved(Value v, const std::string& name);
  void bind(const Name& n, Instr& i, const std::string& shape, std::vector<Value>& values);
  u32 place_of(const Value& v, char shape, Instr& i, unsigned k, Type type);
  void bind_address(Instr& i, const Value& v);
  bool move(const Name& n, Instr& i, std::vector<Value>& values);
  u32 positive(const Value& v);
  void emit(Instr i) { text_->code.push_back(i); }
  u32 label(const std::string& name);

  std::unique_ptr<Module::Text> text_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::vector<std::unordered_map<std::string, Symbol>> scopes_;
  std::map<std::pair<char, u64>, u32> constants_;
  std::map<std::string, u32> specials_;
  u32 chunk_ = 0, chunk_left_ = 0;  // for predicates
  std::vector<Function> functions_;
  std::vector<std::size_t> calls_;  // instructions that call, and those that copy what is passed

  // ---- of the function that is being read ----
  KernelInfo* kernel_ = nullptr;  // nullptr in a device function
  std::size_t function_shared_ = 0, *shared_ = &function_shared_;
  std::map<std::string, u64> shared_of_module_;  // module variables that this function uses
  std::map<std::string, u64> shared_of_functions_;
  unsigned declared_registers_ = 0;
  std::map<std::string, u32> labels_;
  std::vector<std::string> label_names_;  // by what instructions have as target
  std::vector<std::string> table_names_;
  std::map<std::string, std::vector<std::string>> table_labels_;
  std::size_t first_instruction_ = 0, first_table_ = 0;
};

}  // namespace emu
