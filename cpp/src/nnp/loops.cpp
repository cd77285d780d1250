// SPDX-License-Identifier: Apache-2.0
#include "loops.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "message.h"
#include "nnl/errors.h"

namespace nnl {
namespace {

constexpr double most_copies = 1 << 17;  // of functions and variables; nested loops multiply
constexpr int most_hops = 1 << 22;       // through the ends of loops, in all

using Names = std::vector<std::string>;
using Step = std::map<std::string, int64_t>;  // iteration by loop

// How many inputs the ends of loops have.
const std::map<std::string, size_t>& ends() {
  static const std::map<std::string, size_t> inputs = {{"RepeatStart", 2},
                                                       {"RepeatEnd", 1},
                                                       {"RecurrentInput", 1},
                                                       {"RecurrentOutput", 1},
                                                       {"Delay", 2}};
  return inputs;
}

bool is_end(const ProtoMessage& f) { return ends().count(f.text("type")) > 0; }
bool goes_inward(const ProtoMessage& f) { return f.text("type") == "RecurrentInput"; }
bool moves_slices(const ProtoMessage& f) {
  return goes_inward(f) || f.text("type") == "RecurrentOutput";
}

std::string loop_of(const ProtoMessage& end) {
  const bool repeats = end.text("type").rfind("Repeat", 0) == 0;
  const auto found = end.messages(repeats ? "repeat_param" : "recurrent_param");
  return found.empty() ? "" : found[0]->text("repeat_id");
}

void set_texts(ProtoMessage& message, const char* field, const Names& texts) {
  std::vector<ProtoMessage::Item>& items = message.fields[field];
  items.clear();
  for (const std::string& text : texts) items.emplace_back().text = text;
}

class Expansion {
 public:
  explicit Expansion(const ProtoMessage& network)
      : variables_(network.messages("variable")), functions_(network.messages("function")) {
    for (const ProtoMessage* r : network.messages("repeat_info"))
      times_[r->text("id")] = r->integer("times");
    find_times();
    for (const ProtoMessage* v : variables_) loops_[v->text("name")] = v->texts("repeat_id");
    for (const ProtoMessage* f : functions_) {
      for (const std::string& y : f->texts("output")) source_[y] = f;
      if (is_end(*f)) check_end(*f);
      if (is_end(*f) && !moves_slices(*f)) renamed_.insert(f->text("output"));
    }
    check_size();
    for (const char* field : {"name", "batch_size"})
      if (network.has(field)) result.fields[field] = network.fields.at(field);
    for (const ProtoMessage* v : variables_)
      if (!renamed_.count(v->text("name"))) add_variable(*v);
    for (const ProtoMessage* f : functions_) {
      if (moves_slices(*f)) {
        add_slices(*f);
      } else if (!is_end(*f)) {
        add_function(*f);
      }
    }
  }

  ProtoMessage result;

 private:
  // Files without repeat_info say it at the ends of a loop.
  void find_times() {
    std::set<std::string> used;
    const auto note = [&](const ProtoMessage& m) {
      for (const std::string& loop : m.texts("repeat_id")) used.insert(loop);
    };
    for (const ProtoMessage* v : variables_) note(*v);
    for (const ProtoMessage* f : functions_) {
      note(*f);
      if (is_end(*f)) used.insert(loop_of(*f));
      for (const ProtoMessage* p : f->messages("repeat_param"))
        if (p->integer("times")) times_.emplace(p->text("repeat_id"), p->integer("times"));
      for (const ProtoMessage* p : f->messages("recurrent_param"))
        if (p->integer("length")) times_.emplace(p->text("repeat_id"), p->integer("length"));
    }
    for (const std::string& loop : used)
      if (times_[loop] < 1)
        throw ValueError("the loop '" + loop + "' has " + std::to_string(times_[loop]) +
                         " iterations");
  }

  void check_end(const ProtoMessage& f) const {
    const Names in = f.texts("input"), out = f.texts("output");
    const size_t wanted = ends().at(f.text("type"));
    if (in.size() != wanted || out.size() != 1)
      fail(f, "it has " + std::to_string(in.size()) + " inputs and " + std::to_string(out.size()) +
                  " outputs, wanted " + std::to_string(wanted) + " and 1");
    for (const Names& names : {in, out})
      for (const std::string& name : names) loops_of(name, f);
  }

  // The loops that the end of one is in.
  static Names around(const ProtoMessage& end) {
    Names loops = end.texts("repeat_id");
    loops.erase(std::remove(loops.begin(), loops.end(), loop_of(end)), loops.end());
    return loops;
  }

  void check_size() const {
    double copies = 0;
    const auto add = [&](const Names& loops) {
      double n = 1;
      for (const std::string& loop : loops) n *= static_cast<double>(times_.at(loop));
      copies += n;
    };
    for (const ProtoMessage* v : variables_) add(v->texts("repeat_id"));
    for (const ProtoMessage* f : functions_) {
      Names loops = f->texts("repeat_id");
      if (moves_slices(*f)) {  // slices are named one by one
        loops = around(*f);
        loops.push_back(loop_of(*f));
      }
      add(loops);
    }
    if (copies > most_copies)
      throw ValueError("its loops unroll to too many functions and variables, more than 131072");
  }

  [[noreturn]] static void fail(const ProtoMessage& f, const std::string& what) {
    throw ValueError("function '" + f.text("name") + "' (" + f.text("type") + "): " + what);
  }

  const Names& loops_of(const std::string& name, const ProtoMessage& f) const {
    const auto found = loops_.find(name);
    if (found == loops_.end()) fail(f, "there is no variable '" + name + "'");
    return found->second;
  }

  // All iterations of loops, the last one fastest.
  std::vector<Step> steps(const Names& loops) const {
    std::vector<Step> all{{}};
    for (const std::string& loop : loops) {
      std::vector<Step> longer;
      for (const Step& s : all)
        for (int64_t i = 0; i < times_.at(loop); ++i) {
          longer.push_back(s);
          longer.back()[loop] = i;
        }
      all = std::move(longer);
    }
    return all;
  }

  [[noreturn]] static void fail_outside(const std::string& name, const std::string& loop) {
    throw ValueError("the variable '" + name + "' of the loop '" + loop + "' is read outside it");
  }

  static std::string named(std::string name, const Names& loops, const Step& step) {
    std::string suffix;
    for (const std::string& loop : loops) {
      const auto at = step.find(loop);
      if (at == step.end()) fail_outside(name, loop);
      const std::string number = "[" + std::to_string(at->second) + "]", place = "{" + loop + "}";
      size_t found = name.find(place);
      if (found == name.npos) suffix += "_" + loop + number;
      for (; found != name.npos; found = name.find(place, found + number.size()))
        name.replace(found, place.size(), number);
    }
    return name + suffix;
  }

  // What a variable is called in an iteration; the ends of loops are looked through.
  std::string resolved(std::string name, const Step& step, const ProtoMessage& reader) {
    Step here = step;
    while (renamed_.count(name)) {
      const ProtoMessage& f = *source_.at(name);
      const std::string loop = loop_of(f), type = f.text("type");
      const Names in = f.texts("input");
      const auto at = here.find(loop);
      if (type == "RepeatEnd") {
        name = in[0], here[loop] = times_.at(loop) - 1;
      } else if (at == here.end()) {
        fail_outside(name, loop);
      } else {
        name = in[(at->second == 0) == (type == "RepeatStart") ? 0 : 1];
        at->second = std::max<int64_t>(at->second - 1, 0);
      }
      if (++hops_ > most_hops) fail(f, "it leads back to itself");
    }
    return named(name, loops_of(name, reader), here);
  }

  void add(const char* field, ProtoMessage message) {
    result.fields[field].emplace_back().message.push_back(std::move(message));
  }

  void add_variable(const ProtoMessage& v) {
    const Names loops = v.texts("repeat_id");
    for (const Step& step : steps(loops)) {
      ProtoMessage copy = v;
      copy.fields.erase("repeat_id");
      set_texts(copy, "name", {named(v.text("name"), loops, step)});
      add("variable", std::move(copy));
    }
  }

  void add_function(const ProtoMessage& f) {
    const Names loops = f.texts("repeat_id");
    for (const Step& step : steps(loops)) {
      ProtoMessage copy = f;
      for (const char* field : {"repeat_id", "repeat_param", "recurrent_param"})
        copy.fields.erase(field);
      set_texts(copy, "name", {named(f.text("name"), loops, step)});
      for (const char* field : {"input", "output"}) {
        Names names = f.texts(field);
        for (std::string& name : names) name = resolved(name, step, f);
        set_texts(copy, field, names);
      }
      add("function", std::move(copy));
    }
  }

  // A Split before a loop, or a Stack behind it, once for each iteration of the loops around.
  void add_slices(const ProtoMessage& f) {
    const std::string loop = loop_of(f), in = f.text("input"), out = f.text("output");
    for (const Step& step : steps(around(f))) {
      const auto slices = [&](const std::string& name) {
        Names names;
        Step inside = step;
        for (int64_t i = 0; i < times_.at(loop); ++i) {
          inside[loop] = i;
          names.push_back(resolved(name, inside, f));
        }
        return names;
      };
      const bool inward = goes_inward(f);
      ProtoMessage copy, arguments;
      arguments.fields["axis"].emplace_back().integer =
          f.messages("recurrent_param").at(0)->integer("axis");
      copy.fields[inward ? "split_param" : "stack_param"].emplace_back().message.push_back(
          std::move(arguments));
      set_texts(copy, "name", {named(f.text("name"), around(f), step)});
      set_texts(copy, "type", {inward ? "Split" : "Stack"});
      set_texts(copy, "input", inward ? Names{resolved(in, step, f)} : slices(in));
      set_texts(copy, "output", inward ? slices(out) : Names{resolved(out, step, f)});
      add("function", std::move(copy));
    }
  }

  std::vector<const ProtoMessage*> variables_, functions_;
  std::map<std::string, int64_t> times_;
  std::map<std::string, Names> loops_;                 // of variables
  std::map<std::string, const ProtoMessage*> source_;  // of variables
  std::set<std::string> renamed_;                      // variables that the ends of loops stand for
  int hops_ = 0;
};

}  // namespace

bool has_loops(const ProtoMessage& network) {
  if (network.has("repeat_info")) return true;
  const auto functions = network.messages("function"), variables = network.messages("variable");
  return std::any_of(functions.begin(), functions.end(),
                     [](const ProtoMessage* f) { return is_end(*f) || f->has("repeat_id"); }) ||
         std::any_of(variables.begin(), variables.end(),
                     [](const ProtoMessage* v) { return v->has("repeat_id"); });
}

ProtoMessage without_loops(const ProtoMessage& network) {
  return std::move(Expansion(network).result);
}

}  // namespace nnl
