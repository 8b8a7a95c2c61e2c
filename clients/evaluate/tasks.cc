#include "clients/evaluate/tasks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "clients/evaluate/sample_random.h"
#include "clients/evaluate/wording.h"

namespace overture::clients {
namespace {

enum class Family { kHaystack, kList, kVariables, kCommon, kFrequent };
enum class Hay { kNoise, kProse };
enum class Kind { kNone, kDigits5, kDigits7, kDoubled, kBytes, kName };

struct Task {
  absl::string_view name;
  Family family;
  WordingId wording;
  Hay hay;   // also what pads
  Kind key;  // kNone: the fact has no name
  Kind value;
  int num_keys;    // of a haystack's facts; 0: as many as fit
  int key_values;  // facts with the same key
  int keys_asked;  // by one question
  bool two_hops;   // the value belongs to what the key leads to
};

constexpr Task kTasks[] = {
    {"passkey", Family::kHaystack, WordingId::kPasskey, Hay::kNoise,
     Kind::kNone, Kind::kDigits5, 1, 1, 1, false},
    {"number", Family::kHaystack, WordingId::kNumber, Hay::kNoise, Kind::kNone,
     Kind::kDoubled, 1, 1, 1, false},
    {"kv", Family::kList, WordingId::kDictionary, Hay::kProse, Kind::kBytes,
     Kind::kBytes, 0, 1, 1, false},
    {"niah_single_1", Family::kHaystack, WordingId::kNeedle, Hay::kNoise,
     Kind::kName, Kind::kDigits7, 1, 1, 1, false},
    {"niah_single_2", Family::kHaystack, WordingId::kNeedle, Hay::kProse,
     Kind::kName, Kind::kDigits7, 1, 1, 1, false},
    {"niah_single_3", Family::kHaystack, WordingId::kNeedle, Hay::kProse,
     Kind::kName, Kind::kBytes, 1, 1, 1, false},
    {"niah_multikey_1", Family::kHaystack, WordingId::kNeedle, Hay::kProse,
     Kind::kName, Kind::kDigits7, 16, 1, 1, false},
    {"niah_multikey_2", Family::kList, WordingId::kNeedle, Hay::kProse,
     Kind::kName, Kind::kDigits7, 0, 1, 1, false},
    {"niah_multikey_3", Family::kHaystack, WordingId::kNeedle, Hay::kProse,
     Kind::kName, Kind::kBytes, 8, 1, 1, false},
    {"niah_multivalue", Family::kHaystack, WordingId::kNeedles, Hay::kProse,
     Kind::kName, Kind::kDigits7, 1, 4, 1, false},
    {"niah_multiquery", Family::kHaystack, WordingId::kNeedles, Hay::kProse,
     Kind::kName, Kind::kDigits7, 4, 1, 4, false},
    {"vt", Family::kVariables, WordingId::kVariables, Hay::kNoise, Kind::kName,
     Kind::kDigits5, 1, 1, 1, false},
    // Padded with noise, as prose would add to the words that are counted.
    {"cwe", Family::kCommon, WordingId::kCommonWords, Hay::kNoise, Kind::kNone,
     Kind::kNone, 0, 1, 10, false},
    {"fwe", Family::kFrequent, WordingId::kFrequentWords, Hay::kNoise,
     Kind::kNone, Kind::kNone, 0, 1, 3, false},
    {"qa_1", Family::kList, WordingId::kPeople, Hay::kProse, Kind::kName,
     Kind::kName, 0, 1, 1, false},
    {"qa_2", Family::kList, WordingId::kNeighbours, Hay::kProse, Kind::kName,
     Kind::kName, 0, 1, 1, true},
};

// Names are pairs of the first 128 free words and the next 128.
constexpr int64_t kNameWords = 128;
constexpr int64_t kNumNames = kNameWords * kNameWords;

class SampleMaker {
 public:
  SampleMaker(const Task& task, const SampleId& id, int num_turns,
              Spelling spelling, const TokenizeText& tokenize)
      : task_(task),
        id_(id),
        num_turns_(num_turns),
        spelling_(spelling),
        wording_(GetWording(task.wording, spelling)),
        tokenize_(tokenize),
        random_(Xxh3(ToString(id))) {}

  absl::StatusOr<Sample> Make() {
    switch (task_.family) {
      case Family::kHaystack:
        return Haystack();
      case Family::kList:
        return List();
      case Family::kVariables:
        return Variables();
      case Family::kCommon:
        return CommonWords();
      case Family::kFrequent:
        return FrequentWords();
    }
    return absl::InternalError("a task of no family");
  }

 private:
  std::string Symbol(Kind kind) {
    switch (kind) {
      case Kind::kNone:
        return "";
      case Kind::kDigits5:
        return Digits(5);
      case Kind::kDigits7:
        return Digits(7);
      case Kind::kDoubled: {
        std::vector<int64_t> digits = RandomNumbers(5, 10);
        for (int64_t n = 5; n < 10; ++n) {
          const int64_t at = random_.Below(n);
          digits.insert(digits.begin() + at, digits[static_cast<size_t>(at)]);
        }
        return SpellDigits(spelling_, digits);
      }
      case Kind::kBytes:
        return SpellBytes(spelling_, RandomNumbers(16, 256));
      case Kind::kName: {
        // Each name once: a second fact of a name would be a second answer.
        int64_t name = random_.Below(kNumNames);
        while (!names_.insert(name).second) name = random_.Below(kNumNames);
        return SpellName(spelling_, name / kNameWords,
                         kNameWords + name % kNameWords);
      }
    }
    return "";
  }
  std::string Digits(int count) {
    return SpellDigits(spelling_, RandomNumbers(count, 10));
  }
  std::vector<int64_t> RandomNumbers(int count, int64_t below) {
    std::vector<int64_t> numbers;
    for (int i = 0; i < count; ++i) numbers.push_back(random_.Below(below));
    return numbers;
  }
  NextPiece Filler() {
    if (task_.hay == Hay::kNoise) {
      return [this] { return NoiseLine(spelling_); };
    }
    return [this] { return ProseSentence(spelling_, random_); };
  }

  std::string FactText(const std::string& key, const std::string& value) const {
    return Fill(wording_.fact, {{"k", key}, {"v", value}});
  }

  // `value` is what the question names by "{v}".
  absl::StatusOr<Turn> MakeTurn(const std::vector<std::string>& keys,
                                const std::string& value,
                                std::vector<std::string> parts) const {
    const absl::string_view separator = ListSeparator(spelling_);
    Turn turn;
    OVERTURE_ASSIGN_OR_RETURN(
        turn.question, tokenize_(Fill(wording_.question,
                                      {{"k", absl::StrJoin(keys, separator)},
                                       {"v", value},
                                       {"n", absl::StrCat(parts.size())}})));
    OVERTURE_ASSIGN_OR_RETURN(
        turn.gold, tokenize_(Fill(wording_.answer,
                                  {{"v", absl::StrJoin(parts, separator)}})));
    OVERTURE_ASSIGN_OR_RETURN(turn.closing, tokenize_(wording_.closing));
    turn.parts = std::move(parts);
    // In text an answer may begin with words of its own.
    turn.max_tokens = static_cast<int64_t>(turn.gold.size()) +
                      (spelling_ == Spelling::kWords ? 0 : 16);
    return turn;
  }

  int64_t ContextLength(const Turn& first) const {
    return id_.length - static_cast<int64_t>(first.question.size());
  }

  absl::StatusOr<Sample> Haystack() {
    if (num_turns_ * task_.keys_asked > task_.num_keys) {
      return TooManyTurns(task_.num_keys / task_.keys_asked);
    }
    // Facts by key; those asked for first come first, the very first at the
    // wanted depth.
    std::vector<std::string> keys;
    std::vector<std::vector<std::pair<double, std::string>>> values;
    std::vector<Fact> facts;
    for (int i = 0; i < task_.num_keys; ++i) {
      keys.push_back(Symbol(task_.key));
      values.emplace_back();
      for (int j = 0; j < task_.key_values; ++j) {
        const double depth = facts.empty() ? id_.depth : random_.Uniform();
        values.back().emplace_back(depth, Symbol(task_.value));
        facts.push_back(
            {FactText(keys.back(), values.back().back().second), depth});
      }
      // Several values are answered in the order in which they stand.
      std::stable_sort(
          values.back().begin(), values.back().end(),
          [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    Sample sample{.id = id_};
    for (int t = 0; t < num_turns_; ++t) {
      std::vector<std::string> asked;
      std::vector<std::string> parts;
      for (int i = t * task_.keys_asked; i < (t + 1) * task_.keys_asked; ++i) {
        asked.push_back(keys[static_cast<size_t>(i)]);
        for (const auto& [depth, value] : values[static_cast<size_t>(i)]) {
          parts.push_back(value);
        }
      }
      OVERTURE_ASSIGN_OR_RETURN(Turn turn, MakeTurn(asked, "", parts));
      sample.turns.push_back(std::move(turn));
    }
    OVERTURE_ASSIGN_OR_RETURN(
        sample.context,
        BuildHaystack(wording_.head, facts, Filler(),
                      ContextLength(sample.turns[0]), tokenize_));
    return sample;
  }

  struct Entry {
    std::string key;
    std::string middle;  // with two hops: what the key leads to
    std::string value;
  };
  Entry MakeEntry() {
    Entry entry{.key = Symbol(task_.key)};
    if (task_.two_hops) entry.middle = Symbol(task_.key);
    entry.value = Symbol(task_.value);
    return entry;
  }
  std::string LinkText(const Entry& entry) const {
    return Fill(wording_.link, {{"k", entry.key}, {"v", entry.middle}});
  }
  std::string EntryFact(const Entry& entry) const {
    return FactText(task_.two_hops ? entry.middle : entry.key, entry.value);
  }

  absl::StatusOr<Sample> List() {
    // The asked entries exist first: the question's length decides how many
    // others fit. Names run out: each entry takes at most three.
    std::vector<Entry> entries;
    Sample sample{.id = id_};
    for (int t = 0; t < num_turns_; ++t) {
      entries.push_back(MakeEntry());
      OVERTURE_ASSIGN_OR_RETURN(Turn turn, MakeTurn({entries.back().key}, "",
                                                    {entries.back().value}));
      sample.turns.push_back(std::move(turn));
    }
    const int64_t length = ContextLength(sample.turns[0]);
    // An entry of two hops is two items, the link first.
    const int64_t hops = task_.two_hops ? 2 : 1;
    const auto item = [this, hops, &entries](int64_t i) {
      while (i / hops >= static_cast<int64_t>(entries.size())) {
        entries.push_back(MakeEntry());
      }
      const Entry& entry = entries[static_cast<size_t>(i / hops)];
      return i % hops + 1 < hops ? LinkText(entry) : EntryFact(entry);
    };
    OVERTURE_ASSIGN_OR_RETURN(
        int64_t count, CountItems(wording_.head, item, kNumNames / 4 * hops,
                                  length, tokenize_));
    count -= count % hops;
    if (count < num_turns_ * hops) {
      return absl::OutOfRangeError(absl::StrCat("a length of ", id_.length,
                                                " tokens is too short for ",
                                                num_turns_, " entries"));
    }
    std::vector<std::string> items;
    for (int64_t i = 0; i < count; ++i) items.push_back(item(i));
    // The first item, which the first question asks for, goes to its depth.
    const std::string wanted = items[0];
    items.erase(items.begin());
    random_.Shuffle(items);
    items.insert(items.begin() +
                     std::lround(id_.depth * static_cast<double>(items.size())),
                 wanted);
    OVERTURE_ASSIGN_OR_RETURN(
        sample.context,
        BuildList(wording_.head, items, Filler(), length, tokenize_));
    return sample;
  }

  absl::StatusOr<Sample> Variables() {
    constexpr int kNames = 5;  // 4 hops
    if (num_turns_ > 1) return TooManyTurns(1);
    std::vector<Fact> facts;
    Turn turn;
    for (const bool foreign : {false, true}) {
      std::vector<double> depths;
      for (int i = 0; i < kNames; ++i) {
        const double u = random_.Uniform();
        depths.push_back(foreign ? u : id_.depth + u * (1 - id_.depth));
      }
      std::sort(depths.begin(), depths.end());
      if (!foreign) depths[0] = id_.depth;
      const std::string value = Symbol(task_.value);
      std::vector<std::string> names;
      for (int i = 0; i < kNames; ++i) {
        names.push_back(Symbol(task_.key));
        const absl::string_view text = i == 0 ? wording_.fact : wording_.link;
        facts.push_back(
            {Fill(text, {{"k", names.back()},
                         {"v", i == 0 ? value : names[names.size() - 2]}}),
             depths[static_cast<size_t>(i)]});
      }
      if (!foreign) {
        OVERTURE_ASSIGN_OR_RETURN(turn, MakeTurn({}, value, names));
      }
    }
    Sample sample{.id = id_, .turns = {turn}};
    OVERTURE_ASSIGN_OR_RETURN(sample.context,
                              BuildHaystack(wording_.head, facts, Filler(),
                                            ContextLength(turn), tokenize_));
    return sample;
  }

  std::string WordItem(const std::string& word) const {
    return Fill(wording_.fact, {{"k", word}});
  }

  absl::StatusOr<Sample> CommonWords() {
    if (num_turns_ > 1) return TooManyTurns(1);
    const int64_t often = id_.length < 4096 ? 6 : 30;
    const int64_t rarely = id_.length < 4096 ? 1 : 3;
    const std::vector<int64_t> words =
        random_.Distinct(kNumFreeWords, kNumFreeWords);
    const int64_t num_common = task_.keys_asked * often;
    const auto word = [&](int64_t i) {
      const int64_t index = i < num_common
                                ? i / often
                                : task_.keys_asked + (i - num_common) / rarely;
      return FreeWord(words[static_cast<size_t>(index)]);
    };
    std::vector<std::string> common;
    for (int64_t i = 0; i < num_common; i += often) common.push_back(word(i));
    // The parts' order does not change a length.
    OVERTURE_ASSIGN_OR_RETURN(const Turn draft, MakeTurn({}, "", common));
    const int64_t length = ContextLength(draft);
    OVERTURE_ASSIGN_OR_RETURN(
        int64_t count,
        CountItems(
            wording_.head, [&](int64_t i) { return WordItem(word(i)); },
            num_common + (kNumFreeWords - task_.keys_asked) * rarely, length,
            tokenize_));
    count -= std::max<int64_t>(0, count - num_common) % rarely;
    if (count < num_common + rarely) {
      return absl::OutOfRangeError(absl::StrCat("a length of ", id_.length,
                                                " tokens is too short for ",
                                                num_common + rarely, " words"));
    }
    std::vector<std::string> list;
    for (int64_t i = 0; i < count; ++i) list.push_back(word(i));
    return WordList(std::move(list), common, length);
  }

  absl::StatusOr<Sample> FrequentWords() {
    if (num_turns_ > 1) return TooManyTurns(1);
    // Zipf's law with exponent 2. Rank 1 is noise.
    const int64_t num_words =
        std::clamp<int64_t>(id_.length / 50, 8, kNumFreeWords);
    std::vector<std::string> ranks = {spelling_ == Spelling::kWords ? "code"
                                                                    : "..."};
    for (const int64_t i : random_.Distinct(kNumFreeWords, num_words - 1)) {
      ranks.push_back(FreeWord(i));
    }
    const std::vector<std::string> asked(ranks.begin() + 1, ranks.begin() + 4);
    OVERTURE_ASSIGN_OR_RETURN(const Turn draft, MakeTurn({}, "", asked));
    const int64_t length = ContextLength(draft);
    std::vector<int64_t> tokens;
    for (const std::string& word : ranks) {
      OVERTURE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                                tokenize_(WordItem(word)));
      tokens.push_back(static_cast<int64_t>(ids.size()));
    }
    OVERTURE_ASSIGN_OR_RETURN(const std::vector<int32_t> head,
                              tokenize_(wording_.head));
    // The largest list that fits: `top` times the noise, top / r^2 times rank
    // r, at least once.
    const auto times = [](int64_t top, size_t i) {
      const auto rank = static_cast<int64_t>(i) + 1;
      return std::max<int64_t>(1, top / (rank * rank));
    };
    int64_t top = 0;
    for (int64_t needed = 0; needed <= length; ++top) {
      needed = static_cast<int64_t>(head.size());
      for (size_t i = 0; i < ranks.size(); ++i) {
        needed += times(top + 1, i) * tokens[i];
      }
    }
    --top;
    if (times(top, 3) == times(top, 4)) {
      return absl::OutOfRangeError(
          absl::StrCat("a length of ", id_.length,
                       " tokens is too short for ranks 4 and 5 to differ"));
    }
    std::vector<std::string> list;
    for (size_t i = 0; i < ranks.size(); ++i) {
      list.insert(list.end(), static_cast<size_t>(times(top, i)), ranks[i]);
    }
    return WordList(std::move(list), asked, length);
  }

  // A shuffled list of words.
  absl::StatusOr<Sample> WordList(std::vector<std::string> list,
                                  const std::vector<std::string>& asked,
                                  int64_t length) {
    random_.Shuffle(list);
    for (std::string& word : list) word = WordItem(word);
    Sample sample{.id = id_};
    OVERTURE_ASSIGN_OR_RETURN(Turn turn, MakeTurn({}, "", asked));
    turn.any_order = true;
    sample.turns.push_back(std::move(turn));
    OVERTURE_ASSIGN_OR_RETURN(
        sample.context,
        BuildList(wording_.head, list, Filler(), length, tokenize_));
    return sample;
  }

  absl::Status TooManyTurns(int most) const {
    return absl::InvalidArgumentError(
        absl::StrCat("task '", task_.name, "' has ", most,
                     " turns at most, not ", num_turns_));
  }

  const Task& task_;
  const SampleId& id_;
  const int num_turns_;
  const Spelling spelling_;
  const Wording& wording_;
  const TokenizeText& tokenize_;
  SampleRandom random_;
  std::set<int64_t> names_;  // that are taken
};

}  // namespace

std::string DepthText(double depth) {
  std::string text = absl::StrFormat("%.2f", depth);
  double read = 0;
  if (absl::SimpleAtod(text, &read) && read == depth) return text;
  char shortest[32];
  return {shortest,
          std::to_chars(std::begin(shortest), std::end(shortest), depth).ptr};
}

std::string ToString(const SampleId& id) {
  return absl::StrFormat("%s/%d/%s/%d", id.task, id.length, DepthText(id.depth),
                         id.seed);
}

std::vector<std::string> TaskNames() {
  std::vector<std::string> names;
  for (const Task& task : kTasks) names.emplace_back(task.name);
  return names;
}

absl::StatusOr<Sample> MakeSample(const SampleId& id, int num_turns,
                                  Spelling spelling,
                                  const TokenizeText& tokenize) {
  const Task* task =
      std::find_if(std::begin(kTasks), std::end(kTasks),
                   [&id](const Task& t) { return t.name == id.task; });
  if (task == std::end(kTasks)) {
    return absl::NotFoundError(absl::StrCat("no task '", id.task,
                                            "'; there are ",
                                            absl::StrJoin(TaskNames(), ", ")));
  }
  if (!(id.depth >= 0 && id.depth <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("depth is ", id.depth, ", must be within [0, 1]"));
  }
  if (num_turns < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("turns is ", num_turns, ", must be at least 1"));
  }
  return SampleMaker(*task, id, num_turns, spelling, tokenize).Make();
}

}  // namespace overture::clients
