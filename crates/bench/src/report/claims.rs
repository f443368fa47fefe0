//! The claims of the article on a QUIC gateway, each with all comparisons that relate to it, from every scenario and
//! bed.

use std::fmt::Write as _;

use super::analysis::{self, Compared, Judgement, Point};
use super::words;
use crate::published::Figure;
use crate::raw::Described;

/// Its claims, as figures of `published.toml`.
const CLAIMS: [&str; 3] = ["quic-gateway-one-thread", "quic-gateway-production", "quic-gateway-sendmmsg-gso"];

/// A claim with its evidence.
pub(crate) struct Claim<'a> {
    pub(crate) figure: &'a Figure,
    /// The scenario of each comparison, and the comparison.
    pub(crate) evidence: Vec<(&'a str, Compared<'a>)>,
}

/// The claims that have evidence. None if no scenario ran in a guest: the article's figures are for zero-copy, which only
/// guests have.
pub(crate) fn claims<'a>(scenarios: &[(&'a Described, Vec<Point<'a>>)]) -> Vec<Claim<'a>> {
    if !scenarios.iter().any(|(scenario, _)| scenario.bed.is_guest()) {
        return Vec::new();
    }
    let mut all: Vec<(&'a str, Compared<'a>)> = Vec::new();
    for (scenario, points) in scenarios {
        let compared = analysis::compared(scenario, points);
        all.extend(compared.into_iter().map(|one| (scenario.about.name.as_str(), one)));
    }
    let of = |id: &&str| {
        let (evidence, rest) =
            std::mem::take(&mut all).into_iter().partition(|(_, one)| one.beside.figure.id == **id);
        all = rest;
        let evidence: Vec<(&'a str, Compared<'a>)> = evidence;
        let figure = &evidence.first()?.1.beside.figure;
        Some(Claim { figure, evidence })
    };
    CLAIMS.iter().filter_map(of).collect()
}

impl Claim<'_> {
    /// Confirmed, refuted or bounded.
    pub(crate) fn verdict(&self) -> String {
        let judged: Vec<&Compared<'_>> = self
            .evidence
            .iter()
            .map(|(_, one)| one)
            .filter(|one| !matches!(one.judgement, Judgement::TooFewRounds | Judgement::Context))
            .collect();
        let each = |allowed: [Judgement; 2]| judged.iter().all(|one| allowed.contains(&one.judgement));
        if judged.is_empty() {
            "undecided: too few rounds".into()
        } else if each([Judgement::Agrees, Judgement::Stronger]) {
            "confirmed".into()
        } else if each([Judgement::Contradicted, Judgement::NotShown]) {
            "refuted here".into()
        } else {
            let mids = || judged.iter().map(|one| one.ours.mid);
            let (least, most) = (mids().fold(f64::INFINITY, f64::min), mids().fold(0.0, f64::max));
            format!("bounded: between {least:.2} and {most:.2} here")
        }
    }

    /// The claim with its figure.
    pub(crate) fn says(&self) -> String {
        let range = match (self.figure.low, self.figure.high) {
            (low, high) if low == high => format!("{low}"),
            (low, high) => format!("{low} to {high}"),
        };
        format!("{}: {range}", self.figure.says)
    }

    /// A row per comparison: scenario, ours, judgement, why.
    pub(crate) fn rows(&self) -> Vec<[String; 4]> {
        let row = |(scenario, one): &(&str, Compared<'_>)| {
            let why = one.beside.note.clone();
            [(*scenario).to_owned(), words::ours(one), one.judgement.words().to_owned(), why]
        };
        self.evidence.iter().map(row).collect()
    }
}

/// Column heads.
pub(crate) const HEAD: [&str; 4] = ["scenario", "ours", "", "why"];

/// The section in Markdown; empty without claims.
pub(crate) fn markdown(scenarios: &[(&Described, Vec<Point<'_>>)]) -> String {
    let mut text = String::new();
    for claim in claims(scenarios) {
        if text.is_empty() {
            text.push_str("\n## The article's claims\n");
        }
        let _ = writeln!(text, "\n**{}.** {}: {}.\n", claim.says(), claim.figure.source, claim.verdict());
        let _ = writeln!(text, "| {} |\n|{}", HEAD.join(" | "), "---|".repeat(HEAD.len()));
        for row in claim.rows() {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use crate::raw::RawRun;
    use crate::scenario::Bed;

    fn section(raw: &RawRun) -> String {
        let scenarios: Vec<_> =
            raw.scenarios.iter().map(|scenario| (scenario, analysis::points(scenario, raw))).collect();
        markdown(&scenarios)
    }

    /// Figures of a, the base, in each round where b has 2; the claim is half.
    fn guest(a: &[f64]) -> RawRun {
        let mut raw = fixture::raw(&a.iter().map(|a| [*a, 2.0, 3.0]).collect::<Vec<_>>());
        raw.scenarios[0].bed = Bed::GuestIcount;
        raw
    }

    #[test]
    fn a_claim_is_confirmed_refuted_or_bounded_by_its_evidence() {
        for (a, verdict) in [
            (1.0, "confirmed"),
            (0.4, "confirmed"),
            (4.0, "refuted here"),
            (2.0, "refuted here"),
            (1.5, "bounded: between 0.75 and 0.75 here"),
        ] {
            let text = section(&guest(&[a; 6]));
            assert!(
                text.contains(&format!("BiliBili Tech, article on a QUIC gateway on AF_XDP: {verdict}.")),
                "{text}"
            );
        }
        let text = section(&guest(&[1.0; 6]));
        assert!(text.contains("half the CPU of its kernel-UDP path: 0.5.**"), "{text}");
        let row = "| trial | a to b, body 1 KiB: 0.50 (0.50 to 0.50) | agrees | A note. |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn few_rounds_decide_nothing_and_without_zero_copy_there_is_no_section() {
        assert!(section(&guest(&[1.0; 5])).contains("undecided: too few rounds"));
        assert_eq!(section(&fixture::raw(&[[1.0, 2.0, 3.0]; 6])), "");
    }
}
