"""BABILong's official prompts for qa1 to qa3 (booydar/babilong, babilong/prompts.py), to the byte.

The prompt is part of the benchmark: its wording, curly quotes and missing space are kept.
"""

from __future__ import annotations

from ryarn.records import Message
from ryarn.tasks.babi import QuestionType

_OBJECT_FACTS = (
    "You need to answer the question based only on the information from the facts.\n"
    "If a person got an item in the first location and travelled to the second location "
    "the item is also in the second location. "
    "If a person dropped an item in the first location and moved to the second location "
    "the item remains in the first location."
)
_NOTHING_ELSE = "Do not write anything else after that."

PREFIX: dict[QuestionType, str] = {
    "qa1": (
        "I will give you context with the facts about positions of different persons hidden in "
        "some random text and a question. You need to answer the question based only on the "
        "information from the facts. If a person was in different locations, use the latest "
        "location to answer the question.\n\n"
        "<example>\nCharlie went to the hallway. Judith come back to the kitchen. Charlie "
        "travelled to balcony. Where is Charlie?\n"
        "Answer: The most recent location of Charlie is balcony.\n</example>\n\n"
        "<example>\nAlan moved to the garage. Charlie went to the beach. Alan went to the shop. "
        "Rouse travelled to balcony. Where is Alan?\n"
        "Answer: The most recent location of Alan is shop.\n</example>\n\n"
        "Always return your answer in the following format: The most recent location of "
        f"’person’ is ’location’. {_NOTHING_ELSE}"  # noqa: RUF001
    ),
    "qa2": (
        "I give you context with the facts about locations and actions of different persons "
        f"hidden in some random text and a question.{_OBJECT_FACTS}\n\n"
        "<example>\nCharlie went to the kitchen. Charlie got a bottle. Charlie moved to the "
        "balcony. Where is the bottle?\n"
        "Answer: The bottle is in the balcony.\n</example>\n"
        "<example>\nAlan moved to the garage. Alan got a screw driver. Alan moved to the kitchen. "
        "Where is the screw driver?\n"
        "Answer: The screw driver is in the kitchen.\n</example>\n\n"
        "Always return your answer in the following format: The ’item’ is in ’location’. "  # noqa: RUF001
        f"{_NOTHING_ELSE}"
    ),
    "qa3": (
        "I give you context with the facts about locations and actions of different persons "
        f"hidden in some random text and a question. {_OBJECT_FACTS}\n\n"
        "<example>\nJohn journeyed to the bedroom. Mary grabbed the apple. Mary went back to the "
        "bathroom. Daniel journeyed to the bedroom. Daniel moved to the garden. Mary travelled to "
        "the kitchen. Where was the apple before the kitchen?\n"
        "Answer: Before the kitchen the apple was in the bathroom.\n</example>\n"
        "<example>\nJohn went back to the bedroom. John went back to the garden. John went back "
        "to the kitchen. Sandra took the football. Sandra travelled to the garden. Sandra "
        "journeyed to the bedroom. Where was the football before the bedroom?\n"
        "Answer: Before the bedroom the football was in the garden.\n</example>\n\n"
        "Always return your answer in the following format: Before the $location_1$ the $item$ "
        f"was in the $location_2$. {_NOTHING_ELSE}"
    ),
}
"""Instruction, examples and answer format of each question type."""


def babilong_prompt(kind: QuestionType, context: str, question: str) -> tuple[Message, ...]:
    """The one user message of a row; there is no system message."""
    text = (
        f"{PREFIX[kind]}\n\n<context>\n{context.strip()}\n</context>\n\nQuestion: {question}"
    ).strip()
    return ({"role": "user", "content": text},)


def answer_sentence(kind: QuestionType, question: str, answer: str) -> str:
    """The full answer in the form that the prompt asks for.

    Raises:
        ValueError: The question is not of this type.
    """
    words = question.strip().rstrip("?").split()
    match kind, words:
        case "qa1", ["Where", "is", person]:
            return f"The most recent location of {person} is {answer}."
        case "qa2", ["Where", "is", "the", *item]:
            return f"The {' '.join(item)} is in the {answer}."
        case "qa3", ["Where", "was", "the", item, "before", "the", place]:
            return f"Before the {place} the {item} was in the {answer}."
    raise ValueError(f"not a {kind} question: {question!r}")
