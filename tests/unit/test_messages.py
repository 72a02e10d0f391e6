from cpembed.errors import WorkloadError, readable


def test_a_long_word_loses_its_middle_and_what_is_wrong_stays() -> None:
    message = readable(f"gemm: m={'7' * 3000} is not an integer; gemm takes m n k")
    assert message.startswith("gemm: m=777")
    assert "(3,002 characters)" in message
    assert message.endswith("7 is not an integer; gemm takes m n k")
    assert len(message) < 150


def test_a_message_of_many_words_keeps_its_beginning_and_its_remedy() -> None:
    message = readable(f"file: key: {'one two ' * 500}: write three")
    assert message.startswith("file: key: one two")
    assert message.endswith("one two : write three")
    assert len(message) < 600


def test_a_message_is_one_line_of_printable_characters() -> None:
    assert readable("a\x00b\nc \u202ed é") == "a\\x00b c \\u202ed é"


def test_a_path_of_usual_length_is_whole() -> None:
    path = "/home/" + "/".join(["folder"] * 20) + "/spec.toml"
    assert readable(f"{path}: not valid TOML") == f"{path}: not valid TOML"


def test_every_error_of_the_package_is_readable() -> None:
    assert len(str(WorkloadError("x" * 10_000))) < 100
