"""The texts of the tokenizer goldens: what each is there for stands before
it. ASCII only in this file; the other scripts are escaped."""

CORPUS = [
    # The empty text.
    "",
    # English, with contractions in odd case and with the long s.
    "It's what we'd do: they're sure you'll say I'm right, they've said so.",
    "IT'S WHAT WE'D DO, THEY'RE SURE YOU'LL SAY I'M RIGHT; they'Ve, I'lL.",
    "'s't're've'm'll'd 'S'T'RE'VE'M'LL'D '\u017f x'\u017fy 'r 'l 'v 'q ' ''s",
    # German, French, Polish.
    "Der K\u00f6nig wei\u00df, da\u00df die Stra\u00dfe \u00fcber den Flu\u00df"
    " f\u00fchrt.",
    "L'\u00e9t\u00e9 o\u00f9 l'\u0153uvre na\u00eft, \u00ab \u00e7a va ? \u00bb"
    " dit-elle\u202f; aujourd'hui.",
    "Za\u017c\u00f3\u0142\u0107 g\u0119\u015bl\u0105 ja\u017a\u0144.",
    # Russian, Greek.
    "\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0451"
    " \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445"
    " \u0431\u0443\u043b\u043e\u043a, 2024 \u0433\u043e\u0434!",
    "\u03a4\u03b1 \u03c0\u03ac\u03bd\u03c4\u03b1 \u03c1\u03b5\u1fd6,"
    " \u03ba\u03b1\u1f76 \u03bf\u1f50\u03b4\u1f72\u03bd"
    " \u03bc\u03ad\u03bd\u03b5\u03b9.",
    # Arabic with vowel marks and its own digits, Hebrew with points.
    "\u0628\u0650\u0633\u0652\u0645\u0650"
    " \u0627\u0644\u0644\u0651\u064e\u0647\u0650"
    " \u0661\u0662\u0663\u0664 \u0645\u0631\u062d\u0628\u0627\u060c"
    " \u0643\u064a\u0641\u061f",
    "\u05d1\u05b0\u05bc\u05e8\u05b5\u05d0\u05e9\u05b4\u05c1\u05d9\u05ea"
    " \u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd.",
    # Hindi, Bengali, Tamil, Thai.
    "\u0928\u092e\u0938\u094d\u0924\u0947"
    " \u0926\u0941\u0928\u093f\u092f\u093e \u0967\u0968\u0969\u0964"
    " \u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f",
    "\u09ac\u09be\u0982\u09b2\u09be \u0bb5\u0ba3\u0b95\u0bcd\u0b95\u0bae\u0bcd"
    " \u0bb5\u0bca",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01"
    " \u0e51\u0e52\u0e53",
    # Chinese, Japanese, Korean as syllables and as conjoining jamo.
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u662f"
    "2024\u5e7412\u67081\u65e5\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30ab\u30bf"
    "\u30ab\u30ca\u3067\u3059\u3002\uff11\uff12\uff13\uff76\uff9e"
    "\u30ab\u3099",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4!"
    " \u1112\u1161\u11ab\u1100\u116e\u11a8",
    # Emoji: skin tone, family with joiners, flag, keycap, variation selector.
    "\U0001f600\U0001f44d\U0001f3fd"
    " \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
    " \U0001f1e9\U0001f1ea 1\ufe0f\u20e3 \u2764\ufe0f!",
    # Marks that compose, that reorder, that are excluded, and a lone one.
    "e\u0301 \u00e9 o\u0302\u0323 o\u0323\u0302 \u1e69 s\u0323\u0307"
    " q\u0307\u0323 \u0301x \u212b \u2126 \u0958 \u0915\u093c \ufb1d \u0344",
    # A stack of marks.
    "Z\u0310\u0301\u0337\u0321\u0353a\u0334\u0363l\u0316\u0301go",
    # Numbers of every sort.
    "0 7 42 123 1234 12345 123456 1,234,567.89 3.14e-10 0x1F 1st 2nd x86_64",
    "\u00bd\u00b2\u2167\u2460\u4e00\u4e8c\u0664\u0665 1\u00bd 5\u00b2",
    # Code, tabs, newlines of every sort.
    "int main(void) {\n\tfor (int i = 0; i < 10; ++i) {\n\t\tprintf(\"%d\\n\","
    " i);  // loop\n\t}\n\n\treturn 0;\n}\n",
    "def f(x):\r\n    return x**2\r\n\r\n\r\nprint(f(3))\r\n",
    "a\rb\n\rc\r\r\n \n \r\n\t\n d \n",
    "{\"key\": [1, 2.5, null, true], \"url\": \"https://x.org/?q=a&b=c#d\"}",
    "SELECT * FROM t WHERE a != 'b' AND c >= 10; -- don't\n#!/bin/sh\n$HOME/~",
    # White space of every sort, between words and alone.
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u1680h\u202fi\u205fj",
    "a\u200bb\u2060c\ufeffd\u180ee\u00adf",
    " lead", "trail ", "  two", "two  ", "\t", " ", "  ", "\n", "\n\n",
    " \n ", " \t x", "x \u3000\u3000y", "\u00a0\u00a0z", "a\x0b\x0cb",
    "a" + " " * 300 + "b" + "\n" * 150 + "c" + "\t" * 77 + " \n" * 60 + "d",
    " " * 500,
    # Punctuation runs.
    "!!!??? ... --- *** ___ ((())) [[]] {{}} <<>> ~~ `` \"\" '' :-) ;;\n\n!",
    "wait...what?! \u2014\u2013\u2026 \u201cquoted\u201d \u00bfqu\u00e9?",
    # Special tokens within text, broken ones, and touching ones.
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a <|endoftext|> b<|endoftext|><|endoftext|>c <|im_start <|im_end|",
    "<|<|im_start|>|> <||im_end|> im_start|> <tool_call>{}</tool_call>",
    "<|begin_of_text|><|start_header_id|>x<|end_header_id|>\n\n<|eot_id|>",
    # Tokens that take white space along, or stand as words only.
    "one <mask> two<mask>three \n <mask>\t\t<mask> <rs>  x <rs>",
    "word a word_ wordy (word) word", "nfc caf\u00e9! cafe\u0301!",
    # Control characters and the ends of the planes.
    "\x00\x01\x02\x1b[0m\x7f\x80\x9f", "\ufffd\ufffe\uffff\ue000",
    "\U00010000\U0001d400\U00020000\U000e0001\U0010ffff",
    # Letters newer than many libraries know (Unicode 15 and 16).
    "\u1c89\ua7cb\U00031350\U000105c0\U00010d40",
    # A long word.
    "Donaudampfschifffahrtselektrizit\u00e4tenhauptbetriebswerk" * 3,
    "ab" * 200,
]
