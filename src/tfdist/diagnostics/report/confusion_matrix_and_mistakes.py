"""Write the model's answers for the test images: the confusion matrix, and its surest mistakes."""

from collections import Counter

from tfdist.diagnostics.report.markup import details, escape, percent, table
from tfdist.diagnostics.report.run_facts import Answers, Mistake

_MOST_IN_MATRIX = 20  # classes, of which a page has room for a matrix
_MOST_PAIRS, _MOST_CLASSES = 8, 15


def confusion(answers: Answers | None) -> str:
    """Write how often the model took each class for each other one.

    Of many classes, only the pairs that it confuses most and the classes that it recognises least are shown.
    """
    if answers is None or not answers.counts:
        return ""
    matrix = _matrix(answers) if len(answers.classes) <= _MOST_IN_MATRIX else ""
    return matrix + _pairs(answers) + details("Classes that it recognises least", _recalls(answers))


def _matrix(answers: Answers) -> str:
    cells = {(label, answer): count for label, answer, count in answers.counts}
    every = range(len(answers.classes))
    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in answers.classes)
    rows = []
    for label in every:
        row = [cells.get((label, answer), 0) for answer in every]
        total = sum(row) or 1
        shaded = "".join(
            _cell(count, count / total, is_right=label == answer) for answer, count in enumerate(row)
        )
        rows.append(f'<tr><th scope="row">{escape(answers.classes[label])}</th>{shaded}</tr>')
    caption = "A row for each class of the images, a column for each answer; right answers are framed."
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix">'
        f'<table class="confusion"><caption>{caption}</caption>'
        f'<thead><tr><th scope="col">class</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(count: int, share: float, *, is_right: bool) -> str:
    # The root makes the few wrong answers visible beside the many right ones.
    depth = round(100 * max(share, 0.0) ** 0.5)
    names = f"{'right' if is_right else 'wrong'}{' deep' if depth > 70 else ''}"
    return f'<td class="{names}" style="--d:{depth}%">{count or ""}</td>'


def _pairs(answers: Answers) -> str:
    totals = _totals(answers)
    wrong = sorted(
        ((count, label, answer) for label, answer, count in answers.counts if label != answer), reverse=True
    )
    rows = [
        [answers.classes[label], answers.classes[answer], f"{count:,}", percent(count / (totals[label] or 1))]
        for count, label, answer in wrong[:_MOST_PAIRS]
    ]
    return (
        table(["class", "taken for", "images", "of the class"], rows, label="Confused classes")
        if rows
        else ""
    )


def _recalls(answers: Answers) -> str:
    right = {label: count for label, answer, count in answers.counts if label == answer}
    totals = _totals(answers)
    recalls = sorted((right.get(label, 0) / total, label) for label, total in totals.items() if total)
    rows = [
        [answers.classes[label], percent(recall), f"{totals[label]:,}"]
        for recall, label in recalls[:_MOST_CLASSES]
    ]
    return table(["class", "recognised", "images"], rows, label="Classes recognised least")


def _totals(answers: Answers) -> Counter[int]:
    totals: Counter[int] = Counter()
    for label, _, count in answers.counts:
        totals[label] += count
    return totals


def mistakes(answers: Answers | None) -> str:
    """Write the mistakes with their images."""
    if answers is None or not answers.mistakes:
        return ""
    figures = "".join(_figure(mistake, answers) for mistake in answers.mistakes)
    text = "<p>The wrong answers to which the model assigns the highest probability.</p>"
    return f'{text}<ul class="mistakes">{figures}</ul>'


def _figure(mistake: Mistake, answers: Answers) -> str:
    label, answer = escape(answers.classes[mistake.label]), escape(answers.classes[mistake.answer])
    sure = f"{100 * mistake.probability:.1f} %"
    return (
        f'<li><img src="{mistake.picture}" alt="test image {mistake.row:,}, a {label}">'
        f"<span>{label} taken for <strong>{answer}</strong></span><span>{sure} sure</span></li>"
    )
