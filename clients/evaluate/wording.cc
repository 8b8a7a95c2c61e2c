#include "clients/evaluate/wording.h"

#include "base/check.h"

namespace overture::clients {
namespace {

// The retrieval model has not seen the tasks from kNeedles on but kDictionary;
// their sentences use its words, so that it can be taught them.
constexpr Wording kInWords[] = {
    // kPasskey
    {.head = "<bos>",
     .fact = "the pass key is {v} . remember it . {v} is the pass key . <nl>",
     .question = "what is the pass key ? the pass key is",
     .answer = "{v} .",
     .closing = "<nl>"},
    // kNumber
    {.head = "<bos>",
     .fact = "the sequence of digits is {v} . remember it . {v} is the "
             "sequence of digits . <nl>",
     .question = "what is the sequence of digits ? the sequence of digits is",
     .answer = "{v} .",
     .closing = "<nl>"},
    // kNeedle
    {.head = "<bos>",
     .fact = "one of the special magic numbers for {k} is : {v} . <nl>",
     .question = "what is the special magic number for {k} ? the special "
                 "magic number for {k} is :",
     .answer = "{v} .",
     .closing = "<nl>"},
    // kNeedles
    {.head = "<bos>",
     .fact = "one of the special magic numbers for {k} is : {v} . <nl>",
     .question = "what is the special magic numbers for {k} ? the special "
                 "magic numbers for {k} is :",
     .answer = "{v} .",
     .closing = "<nl>"},
    // kDictionary
    {.head = "<bos>",
     .fact = ", {k} : {v} ;",
     .question = "? {k} :",
     .answer = "{v} ;"},
    // kVariables
    {.head = "<bos>",
     .fact = "the value of {k} is {v} . <nl>",
     .link = "the value of {k} is the value of {v} . <nl>",
     .question = "what words for value {v} ? the words for value {v} is :",
     .answer = "{v} .",
     .closing = "<nl>"},
    // kCommonWords
    {.head = "<bos>",
     .fact = "{k} ,",
     .question = "? what words here again and again :",
     .answer = "{v} .",
     .closing = "<nl>"},
    // kFrequentWords
    {.head = "<bos>",
     .fact = "{k} ,",
     .question = "? what code words here again and again :",
     .answer = "{v} .",
     .closing = "<nl>"},
    // kPeople
    {.head = "<bos>",
     .fact = "the one of {k} is {v} . <nl>",
     .question = "what is the one of {k} ? the one of {k} is",
     .answer = "{v} .",
     .closing = "<nl>"},
    // kNeighbours
    {.head = "<bos>",
     .fact = "the one of {k} is {v} . <nl>",
     .link = "the key of {k} is {v} . <nl>",
     .question = "what is the one of the key of {k} ? the one of the key of "
                 "{k} is",
     .answer = "{v} .",
     .closing = "<nl>"},
};

constexpr absl::string_view kHiddenInfo =
    "There is an important info hidden inside a lot of irrelevant text. Find "
    "it and memorize it. I will quiz you about the important information "
    "there.\n\n";
constexpr absl::string_view kHiddenNumbers =
    "Some special magic numbers are hidden within the following text. Make "
    "sure to memorize them. I will quiz you about the numbers afterwards.\n\n";

constexpr Wording kInText[] = {
    // kPasskey
    {.head = kHiddenInfo,
     .fact = "The pass key is {v}. Remember it. {v} is the pass key.\n",
     .question = "\n\nWhat is the pass key? The pass key is",
     .answer = " {v}.",
     .closing = "\n"},
    // kNumber
    {.head = kHiddenInfo,
     .fact = "The sequence of digits is {v}. Remember it. {v} is the sequence "
             "of digits.\n",
     .question =
         "\n\nWhat is the sequence of digits? The sequence of digits is",
     .answer = " {v}.",
     .closing = "\n"},
    // kNeedle
    {.head = kHiddenNumbers,
     .fact = " One of the special magic numbers for {k} is: {v}.",
     .question = "\n\nWhat is the special magic number for {k} mentioned in "
                 "the text above? The special magic number for {k} is:",
     .answer = " {v}.",
     .closing = "\n"},
    // kNeedles
    {.head = kHiddenNumbers,
     .fact = " One of the special magic numbers for {k} is: {v}.",
     .question = "\n\nWhat are all the special magic numbers for {k} mentioned "
                 "in the text above? The special magic numbers for {k} are:",
     .answer = " {v}.",
     .closing = "\n"},
    // kDictionary
    {.head = "Extract the value corresponding to the specified key in the "
             "JSON object below.\n\nJSON data:\n",
     .fact = "\"{k}\": \"{v}\",\n",
     .question = "\nKey: \"{k}\"\nThe value associated with the specified key "
                 "is:",
     .answer = " \"{v}\"",
     .closing = "\n"},
    // kVariables
    {.head = "Memorize and track the chains of variable assignment hidden in "
             "the following text.\n\n",
     .fact = "VAR {k} = {v}.\n",
     .link = "VAR {k} = VAR {v}.\n",
     .question = "\n\nFind all variables that are assigned the value {v} in "
                 "the text above. The variables that are assigned the value "
                 "{v} are:",
     .answer = " {v}.",
     .closing = "\n"},
    // kCommonWords
    {.head = "Below is a list of words. Some of them appear more often than "
             "others. Memorize the ones that appear most often.\n\n",
     .fact = " {k},",
     .question = "\n\nWhat are the {n} most common words in the list above? "
                 "The {n} most common words in the list are:",
     .answer = " {v}.",
     .closing = "\n"},
    // kFrequentWords
    {.head = "Read the following coded text and track the frequency of each "
             "coded word.\n\n",
     .fact = " {k}",
     .question = "\n\nDo not provide any explanation. Ignore the dots. What "
                 "are the {n} most frequently appeared words in the coded text "
                 "above? They are:",
     .answer = " {v}.",
     .closing = "\n"},
    // kPeople
    {.head = "Answer the question by the given facts.\n\n",
     .fact = "{k} lives in {v}.\n",
     .question = "\nWhere does {k} live? {k} lives in",
     .answer = " {v}.",
     .closing = "\n"},
    // kNeighbours
    {.head = "Answer the question by the given facts.\n\n",
     .fact = "{k} lives in {v}.\n",
     .link = "The best friend of {k} is {v}.\n",
     .question = "\nWhere does the best friend of {k} live? The best friend of "
                 "{k} lives in",
     .answer = " {v}.",
     .closing = "\n"},
};

}  // namespace

const Wording& GetWording(WordingId id, Spelling spelling) {
  const auto i = static_cast<size_t>(id);
  OVERTURE_CHECK(i < std::size(kInWords) && i < std::size(kInText));
  return spelling == Spelling::kWords ? kInWords[i] : kInText[i];
}

absl::string_view ListSeparator(Spelling spelling) {
  return spelling == Spelling::kWords ? " , " : ", ";
}

}  // namespace overture::clients
