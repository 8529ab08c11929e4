//! Beside form: each section's code, run by the workgroups of its range of grid axis 0.

use unglue_passes::schedule::Section;

use super::{Gen, Part, Res};
use crate::kp::Val;

impl<'a> Gen<'a> {
    pub fn beside_form(&mut self, parts: &'a [Part<'a>]) -> Res<()> {
        let group = self.b.group(0);
        for part in parts {
            let Section { first, .. } = *part.section;
            let inside = self.in_range(group, first, first + part.section.workgroups());
            self.when(inside, |g| g.section(part, group))?;
        }
        Ok(())
    }

    fn section(&mut self, part: &'a Part<'a>, group: Val) -> Res<()> {
        let (kernel, row) = ((self.g, self.schedule), self.row);
        (self.g, self.schedule) = (&part.graph, &part.section.schedule);
        self.place = Some(self.place_in(part.section, group));
        let out = self.one_form();
        (self.g, self.schedule) = kernel;
        (self.row, self.place, self.head, self.mask) = (row, None, None, None);
        self.sequence = None;
        // Value numbers mean other values in the next section.
        self.kept.clear();
        out
    }

    /// The workgroup's number along each axis of a section's own grid.
    pub(super) fn place_in(&mut self, s: &Section, group: Val) -> [Val; 3] {
        let [x, y, _] = s.grid.map(|n| self.b.i(n as i64));
        let first = self.b.i(s.first as i64);
        let at = self.b.sub(group, first);
        let (line, column) = (self.b.div(at, x), self.b.rem(at, x));
        [column, self.b.rem(line, y), self.b.div(line, y)]
    }

    /// Number of the workgroup along an axis of the grid: the launch's, or the section's own.
    pub fn group(&mut self, axis: u8) -> Val {
        match self.place {
            Some(place) => place[usize::from(axis.min(2))],
            None => self.b.group(axis),
        }
    }
}
