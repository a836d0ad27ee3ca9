"""Of each exhibit the title and one sentence: what it shows and how to read it, for whoever sets it in a page."""

from __future__ import annotations

_INTERVALS = "means over seeds with 95% bootstrap (thick) and Student t (thin) intervals"

# Behind the caption of a figure that shows fewer settings than vary.
ENVELOPE = ("Other settings vary as well: every mean is that of the best of up to {most} settings by mean validation "
            "accuracy; no ε covers that choice.")
CAPTIONS = {
    "table1": "Test accuracy at the last epoch by algorithm and noise level σ, mean and 95% t interval over n seeds, "
              "beside Table 1 of Ohana et al. 2021 where the settings are the paper's; σ is no privacy level.",
    "figure2": "Validation accuracy by epoch, a panel for each algorithm, dashed without privacy and brighter with "
               "more noise; last, alignment of PDFA's second layer with the true gradient (Figure 2 of Ohana et al. "
               "2021; means over seeds with 95% bootstrap bands).",
    "frontier": f"Test accuracy against ε, one panel for each kind of guarantee: {_INTERVALS}, and in grey the Pareto "
                "front of all algorithms; points of one ε stand side by side.",
    "frontier_worst_class": "Test accuracy of the class that fares worst, which clipping and noise hurt first, against "
                            f"ε, one panel for each kind of guarantee: {_INTERVALS}.",
    "frontier_alignment": "Alignment of the applied update with the true gradient in the hidden layers against ε, one "
                          f"panel for each kind of guarantee: {_INTERVALS}.",
    "frontier_slices": f"Test accuracy against ε, a panel for every value of one or two more settings: {_INTERVALS}, "
                       "and in grey the Pareto front of all algorithms of a panel.",
    "frontier_claimed": "Test accuracy against the ε that formulas printed in Ohana et al. 2021 claim, one panel for "
                        f"each formula; this ε is no guarantee ({_INTERVALS}).",
    "alignment_heatmap": "Alignment of the applied update with the true gradient in the hidden layers, by noise level "
                         "σ and bound τ_h on the activations, mean over seeds, one panel for each algorithm.",
    "accuracy_heatmap": "Test accuracy by noise level σ and bound τ_h on the activations, mean over seeds, one panel "
                        "for each algorithm.",
    "tau_h_sweep": "Test accuracy and alignment of the hidden layers against the bound τ_h on the activations, a row "
                   f"for each noise: {_INTERVALS}.",
    "batch_size_sweep": "Test accuracy and alignment of the hidden layers against batch size at a fixed number of "
                        f"epochs, a row for each noise: {_INTERVALS}.",
    "clipping_norm_sweep": "Test accuracy and alignment of the hidden layers against the norm to which every record's "
                           f"contribution is clipped, a row for each noise: {_INTERVALS}.",
    "main_effects": "Mean test accuracy by level of every setting that varies, with the part of the variance that it "
                    "explains.",
    "parallel_coordinates": "Every setting as a line through an axis for each field that varies, coloured by its mean "
                            "test accuracy, which is the last axis; lines through one value lie in the order of their "
                            "accuracy.",
    "means": "Mean accuracies of every setting over its seeds.",
    "leekifer": "Accuracy by epoch of back-propagation, direct feedback alignment and their hybrid under certified "
                "noise, dashed without privacy, with the certified ε on top (Figures 2 to 4 of Lee & Kifer 2020).",
}

TITLES = {
    "table1": "Test accuracy by noise level",
    "figure2": "Learning curves and alignment",
    "frontier": "Accuracy against ε",
    "frontier_worst_class": "Accuracy of the worst class against ε",
    "frontier_alignment": "Alignment against ε",
    "frontier_slices": "Accuracy against ε by further settings",
    "frontier_claimed": "Accuracy against the ε that is claimed: no guarantee",
    "alignment_heatmap": "Alignment by noise and activation bound",
    "accuracy_heatmap": "Accuracy by noise and activation bound",
    "tau_h_sweep": "Accuracy and alignment by activation bound",
    "batch_size_sweep": "Accuracy and alignment by batch size",
    "clipping_norm_sweep": "Accuracy and alignment by clipping norm",
    "main_effects": "Which setting matters",
    "parallel_coordinates": "All settings at once",
    "means": "Means over seeds of every setting",
    "leekifer": "Accuracy by epoch, and ε spent",
    "selection": "The best trial, and its price",
}


def titled(title: str, markdown: str) -> str:
    """The Markdown of an exhibit under its title, as `analysis.report.page` reads it."""
    return f"## {title}\n\n{markdown}"
