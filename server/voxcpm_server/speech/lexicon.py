"""Word lists for the ends of sentences. The words are in lower case, without a full stop at the end."""

from __future__ import annotations

from collections.abc import Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ABBREVIATIONS: Mapping[str, frozenset[str]] = {
    "en": _words(
        """
        adm approx apt assn assoc asst ave blvd bldg brig capt cf cmdr co col comdr corp cpl dept dist div dr eds est
        etc ext fr ft gen gov hon hr inc jr lt ltd maj messrs mgr mr mrs ms mt mts mx oz pfc ph prof pt pvt rd rev rs
        sen sgt sr st ste supt tel univ viz vs
        """
    ),
    "de": _words(
        """
        abs abt allg bes bspw bzgl bzw ca chr dipl dr ehem einschl entspr etw evtl exkl fa ff fr frl geb gegr gem gest
        ggf ggü hl hr hrsg inkl ing insb insbes jhdt kath lfd max mind mio mrd mtl mwst näml nr pfd prof rd rel rzpt
        sog st std stellv str tel tsd urspr usf usw verf vgl vorm zit zzgl
        """
    ),
    "fr": _words(
        """
        ad apr av bd boul cf chap cie coll dr env etc hab inv janv juil lt mgr mlle mlles mm mme mmes mr pl pr prof
        réf sgt soc st ste suiv tél vs éd édit
        """
    ),
    "es": _words(
        """
        abr admón afmo apdo aprox atte avda av ayto cap cía col comp depto dcha dir dn dpto dr dra dres dto dña ej
        entlo esq etc excmo fdo gob gral hnos ilmo izda izdo lic ltda pbro pdte pl prof prov pza ref rte sr sra sras
        sres srta srtas sta sto tel ud uds urb vd vds vid
        """
    ),
    "ru": _words(
        """
        акад англ гг гос гр греч губ др доц долл евр зав зам изд им инд ин итал кв коп лат лит макс мин млн млрд нем
        нач обл оз ок пер пл пос пр пред прим проф просп проч рев ред реж руб рус сб св сев сек см ср ст стр таб табл
        тел тов тыс ул фр чел шт экз юж яп
        """
    ),
    "hi": _words(
        """
        डॉ प्रो श्री श्रीमती पं कु सं पृ ई रु
        """
    ),
    "ar": _words(
        """
        أ إ د م ص ج هـ ق ت أ.د
        """
    ),
}
"""Abbreviations by language that the library `sentencex` does not know.

Single letters and words with a full stop inside, such as "e.g.", need no entry, because they never end a sentence.
"""

BEFORE_NUMBERS = _words(
    """
    abb abs art bd c cap ch chap ex fig figs gl kap lin n no nos nr núm num p par pág págs pp pt s sec sect t tab vol
    vols z ziff гл илл п пп рис с т табл ч §
    """
)
"""Words that are abbreviations only before a digit: "No. 5", but "No. I will not"."""

ORDINARY = _words(
    "ago an art auto con da dis extra fed id ill in km let may me mini miss no para post pro re sub super uni"
)
"""Words that `sentencex` treats as abbreviations in some language, but that end sentences far more often."""

ADDRESS_LEADS = _words(
    """
    adresse besuche besuchen browse domain download edit file http https import install site sitio url version via visit
    visita visite visitez webseite website www
    """
)
"""Words before addresses and file names: "visit acme." may continue with "com"."""

HOSTS = _words(
    """
    amazon apple example facebook github gitlab gmail google huggingface instagram linkedin localhost microsoft
    netflix node openai outlook paypal readme reddit spotify twitter whatsapp wikipedia www yahoo youtube zoom
    """
)
"""Names whose full stop is often inside an address, whatever precedes them."""

NEVER_HOSTS = _words("her here him home it me now that them there this today tomorrow tonight us you yesterday")
"""Words after ADDRESS_LEADS that are not names of hosts: "visit them."."""
