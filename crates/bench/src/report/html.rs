//! The report as one self-contained page: style and plots are in it, and it has no script.

use std::fmt::Write as _;

use super::analysis::{self, Compared, Point};
use super::plot::{bars, curves, escape};
use super::{claims, picture, standing, words};
use crate::raw::{Absent, Described, RawRun};

const STYLE: &str = include_str!("style.css");

/// A whole report.
pub fn html(raw: &RawRun, title: &str) -> String {
    let scenarios: Vec<(&Described, Vec<Point<'_>>)> =
        raw.scenarios.iter().map(|scenario| (scenario, analysis::points(scenario, raw))).collect();
    let title = escape(title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>\n{STYLE}</style></head><body><main>\n<h1>{title}</h1>\n"
    );
    first(&mut page, &scenarios);
    claimed(&mut page, &scenarios);
    machine(&mut page, raw);
    for (scenario, points) in &scenarios {
        section(&mut page, raw, scenario, points);
    }
    absent(&mut page, "Contestants that could not run", &raw.missing);
    absent(&mut page, "Failed runs", &raw.failed);
    page.push_str("</main></body></html>\n");
    page
}

fn first(page: &mut String, scenarios: &[(&Described, Vec<Point<'_>>)]) {
    let standings = standing::standings(scenarios);
    let Some(svg) = picture::draw(&standings, true) else { return };
    let _ = writeln!(page, "<h2>Ours beside the others</h2>\n<p>{}</p>", standing::EXPLAINED);
    let _ = writeln!(page, "<figure class=\"wide\">{svg}</figure>");
    let rest: Vec<&standing::Standing<'_>> = standings.iter().filter(|one| one.ratio.is_none()).collect();
    if rest.is_empty() {
        return;
    }
    page.push_str("<p>Without a ratio:</p><ul>\n");
    for one in rest {
        let line = words::standing(one);
        let _ = writeln!(page, "<li><a href=\"#{}\">{}</a></li>", escape(one.scenario), escape(&line));
    }
    page.push_str("</ul>\n");
}

fn claimed(page: &mut String, scenarios: &[(&Described, Vec<Point<'_>>)]) {
    for (index, claim) in claims::claims(scenarios).iter().enumerate() {
        if index == 0 {
            page.push_str("<h2>The article's claims</h2>\n");
        }
        let (says, source, verdict) = (claim.says(), &claim.figure.source, claim.verdict());
        let _ = writeln!(page, "<p><b>{}.</b> {}: {}.</p>", escape(&says), escape(source), escape(&verdict));
        let cells = |tag: &str, cells: &[String]| -> String {
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
        };
        let head = cells("th", &claims::HEAD.map(str::to_owned));
        let _ = writeln!(
            page,
            "<div class=\"wide\"><table class=\"beside\"><thead><tr>{head}</tr></thead><tbody>"
        );
        for row in claim.rows() {
            let _ = writeln!(page, "<tr>{}</tr>", cells("td", &row));
        }
        page.push_str("</tbody></table></div>\n");
    }
}

fn machine(page: &mut String, raw: &RawRun) {
    page.push_str("<h2>The machine</h2>\n");
    for environment in &raw.environments {
        let _ = writeln!(page, "<p>{}.</p>", escape(&words::machine(environment)));
        let _ = writeln!(page, "<pre>{}</pre><ul>", escape(&environment.command));
        for circumstance in words::circumstances(environment) {
            let _ = writeln!(page, "<li>{}</li>", escape(&circumstance));
        }
        for (name, program) in &environment.programs {
            let _ = writeln!(
                page,
                "<li>{}: <code>{}</code>. {}</li>",
                escape(name),
                escape(&program.version),
                code(&program.why)
            );
        }
        page.push_str("</ul>\n");
    }
    let _ = writeln!(page, "<p>{}</p>", words::METHOD);
}

fn section(page: &mut String, raw: &RawRun, scenario: &Described, points: &[Point<'_>]) {
    let name = escape(&scenario.about.name);
    let _ = writeln!(page, "<section id=\"{name}\"><h2>{name}: {}</h2>", escape(&scenario.about.title));
    let _ = writeln!(page, "<p><b>Claim.</b> {}</p>", code(&scenario.about.claim));
    let _ = writeln!(page, "<p><b>What is measured.</b> {}</p>", code(&scenario.about.measures));
    let held =
        scenario.about.held_equal.iter().map(|one| format!("<li>{}</li>", code(one))).collect::<String>();
    let _ = writeln!(page, "<details><summary>Held equal</summary><ul>{held}</ul></details>");
    if let Some(emulated) = words::emulated(scenario) {
        let _ = writeln!(page, "<p><b>Where.</b> {}</p>", code(&emulated));
    }
    let settings = words::settings(scenario);
    if !settings.is_empty() {
        let _ = writeln!(page, "<p><b>Settings.</b> {}.</p>", escape(&settings));
    }
    if let Some(hosts) = raw.environments.first().and_then(|one| words::hosts(scenario, one)) {
        let _ = writeln!(page, "<p><b>Where.</b> {}</p>", escape(&hosts));
    }
    let _ = writeln!(page, "<p><b>Effort.</b> {}</p>", words::effort(scenario));
    for (rest, svg) in curves(scenario, points) {
        let _ = writeln!(page, "<figure>{svg}<figcaption>{}</figcaption></figure>", escape(&rest));
    }
    for point in points {
        let _ = writeln!(page, "<h3>{}</h3>", escape(&words::point(point.at)));
        if let Some(svg) = bars(scenario, point).filter(|_| scenario.about.curve.is_none()) {
            let _ = writeln!(page, "<figure>{svg}</figure>");
        }
        table(page, scenario, point);
    }
    if !scenario.about.reading.is_empty() {
        let _ = writeln!(page, "<p><b>How to read it.</b> {}</p>", code(&scenario.about.reading));
    }
    let compared = analysis::compared(scenario, points);
    if !compared.is_empty() {
        beside(page, &compared);
        if let Some(environment) = raw.environments.first() {
            let differs = words::bed_differs(scenario, environment);
            let _ = writeln!(page, "<p><b>How this machine differs.</b> {}</p>", escape(&differs));
        }
    }
    page.push_str("</section>\n");
}

fn table(page: &mut String, scenario: &Described, point: &Point<'_>) {
    let table = words::table(scenario, point);
    page.push_str("<div class=\"wide\"><table><thead><tr>");
    for head in &table.head {
        let _ = write!(page, "<th>{}</th>", escape(head));
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<td>{}</td>", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    let leaders = words::leaders(point);
    if !leaders.is_empty() {
        let _ = writeln!(page, "<p class=\"verdict\">{}</p>", escape(&leaders));
    }
}

fn beside(page: &mut String, compared: &[Compared<'_>]) {
    page.push_str(
        "<div class=\"wide\"><table class=\"beside\"><thead><tr><th>published</th><th>theirs</th><th>ours</th><th>ours by \
         theirs</th><th></th></tr></thead><tbody>\n",
    );
    for one in compared {
        let figure = &one.beside.figure;
        let _ = writeln!(
            page,
            "<tr><td>{}<br><small>{}; {}</small></td><td>{}</td><td>{}<br><small>{}</small></td><td>{}</td><td>{}</td></tr>",
            escape(&figure.says),
            escape(&figure.source),
            escape(&figure.bed),
            escape(&words::theirs(one)),
            escape(&words::ours(one)),
            escape(&one.beside.note),
            words::by_theirs(one),
            one.judgement.words()
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn absent(page: &mut String, title: &str, absent: &[Absent]) {
    let lines = words::absent(absent);
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(page, "<h2>{title}</h2><ul>");
    for line in lines {
        let _ = writeln!(page, "<li>{}</li>", escape(&line));
    }
    page.push_str("</ul>\n");
}

/// Escaped text of a file, with what stands between backquotes as code.
fn code(text: &str) -> String {
    let text = escape(&words::unwrap(text));
    let parts = text.split('`').enumerate();
    parts
        .map(|(index, part)| if index % 2 == 1 { format!("<code>{part}</code>") } else { part.to_owned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn a_page_is_whole_escaped_and_follows_the_scheme() {
        let raw = fixture::raw(&[[3.0, 2.0, 1.0]; 6]);
        let page = html(&raw, "Trials & <more>");
        assert!(page.contains("<title>Trials &amp; &lt;more&gt;</title>"));
        assert!(
            page.contains("A &lt;CPU&gt;") && page.contains("each &lt;second&gt;"),
            "what a raw file says is text"
        );
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(page.find("class=\"picture\"").unwrap() < page.find("The machine").unwrap());
        assert!(page.contains("<a href=\"#trial\"><text") && page.contains(">3.00  c / a</text>"), "{page}");
        assert!(page.contains("<td>a</td><td>3.00 (3.00 to 3.00)</td>"), "{page}");
        for foreign in ["<script", "http://", "https://", "@import", "<link"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(page, html(&raw, "Trials & <more>"));
    }

    #[test]
    fn backquotes_are_code() {
        assert_eq!(code("set `a<b` on"), "set <code>a&lt;b</code> on");
    }
}
