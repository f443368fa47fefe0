//! Figures published by others, from `published.toml`.

use serde::{Deserialize, Serialize};

/// The data file.
const TEXT: &str = include_str!("../published.toml");

/// A figure, in our words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Its name in scenario files.
    pub id: String,
    /// Who published it.
    pub source: String,
    /// On what.
    pub bed: String,
    /// What it says.
    pub says: String,
    /// `ratio`, or the unit of the metric that it is a figure of.
    pub unit: String,
    /// The figure, or its lower end.
    pub low: f64,
    /// The same, or its upper end.
    pub high: f64,
}

impl Figure {
    /// Whether it compares two ways on the publisher's own machine.
    pub fn is_ratio(&self) -> bool {
        self.unit == "ratio"
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    figure: Vec<Figure>,
}

fn all() -> Vec<Figure> {
    // The text is part of the binary; a test reads it.
    toml::from_str::<File>(TEXT).map(|file| file.figure).unwrap_or_default()
}

/// The figure of this name.
pub(crate) fn find(id: &str) -> Option<Figure> {
    all().into_iter().find(|figure| figure.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_can_be_read_has_one_name_and_an_order() {
        let figures = toml::from_str::<File>(TEXT).unwrap().figure;
        for figure in &figures {
            assert!(0.0 < figure.low && figure.low <= figure.high, "{}", figure.id);
            assert_eq!(figures.iter().filter(|other| other.id == figure.id).count(), 1, "{}", figure.id);
            assert!(!figure.source.is_empty() && !figure.bed.is_empty() && !figure.says.is_empty());
        }
    }
}
