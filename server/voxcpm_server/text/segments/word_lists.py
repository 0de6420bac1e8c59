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
        abs abt allg aug bes bspw bzgl bzw ca chr dez dipl dr ehem einschl entspr etc etw evtl exkl fa febr ff fr frl
        geb gegr gem gest ggf ggü hl hr hrsg inkl ing insb insbes jan jhdt jr kath lfd max mind mio mr mrd mrs mtl mwst
        näml nov nr okt pfd prof rd rel rzpt sept sog sr st std stellv str tel tsd urspr usf usw verf vgl vorm zit zzgl
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
        авг акад англ гг гос гр греч губ дек др доц долл евр зав зам изд им инд ин итал кв коп лат лит макс мин млн млрд
        нем нояб окт сент февр янв
        нач обл оз пер пл пос пр пред прим проф просп проч рев ред реж руб рус сб св сев сек см ср ст стр таб табл
        тел тов тыс ул фр чел шт экз юж яп
        """
    ),
    "hi": _words(
        """
        डॉ डा प्रो श्री श्रीमती पं कु क्र नं सं पृ ई रु
        """
    ),
    "ar": _words(
        """
        أ إ د م ص ج هـ ق ت أ.د
        """
    ),
    "da": _words(
        """
        adj adr afd apr art aug ca cand chr dec dir div dr ekskl etc evt feb fhv fig gl hr inkl jan jf jr kap kl kr mag
        max mdr mio mr mrd mrs mv nov nr okt osv pga prof red resp sept sml sr st stk str tlf vs
        """
    ),
    "nl": _words(
        """
        apr aug bijv blz bv ca dec dhr dr drs enz etc evt excl feb fig ged gem hr incl ing ir jan jl jr kl max mej mevr
        mr mrs mw nov nr okt prof ref resp sept sr st str tel vgl vs zgn
        """
    ),
    "sv": _words(
        """
        adj apr art aug avd ca dec dir dr enl etc ev exkl feb fig forts inkl jan jfr jr kap kl kr max mr mrs nov nr okt
        osv prof red ref resp sept sid sr st tel vard vs
        """
    ),
    "no": _words(
        """
        adm adr apr art aug avd ca des dir dr eks ekskl etc evt feb fig hr inkl jan jf jfr jr kap kl kr mill mr mrd mrs
        mv nov nr okt osv pga prof red ref resp sept sr st str tlf vs
        """
    ),
    "fi": _words(
        """
        alk dos dr em ent esim ev evp fil huom ilm ins jne joht jr kk kpl ks kts lis ltn luut maist maks milj mm mr mrd
        mrs nim nk ns oik prof puh ransk ruots sr synt tjsp toim tri vrt vs yht yms
        """
    ),
    "it": _words(
        """
        arch avv ca col cfr dott dr ecc egr es fig fratt gen gent geom ing jr mons mr mrs nov ott on pagg prof profssa
        rag sig sigg sigra sgg spett sr ss tel vs
        """
    ),
    "pt": _words(
        """
        adm apto av cel cia dep dept dr dra dras drs eng esq etc exmo fev fig gen ilmo jan jr lda ltda máx mr mrs mín
        nov obs out pe prof profa rev set sr sra sras srs srta sta sto tel trav vs
        """
    ),
    "pl": _words(
        """
        al arch bp doc dr dyr gen godz hab im inż itd itp jr jw kard kpt ks lek mgr mies mjr mld mln np nr ob os płk
        prof ps red rys str sp sw tel tj tys tzn tzw ul ur wyd zob śp św
        """
    ),
    "tr": _words(
        """
        alb apt av bkz blv bul cad doç dr ecz gen haz hz mah md müh org ort prof sn sok tel tic uzm vb vd vs yrd yy çev
        öğr ör şb şti
        """
    ),
    "vi": _words("bs gs ks ls pgs pgs.ts ths tp tr ts"),
    "id": _words(
        """
        bpk dll dr dra drs dsb dst hj hlm ir jl jln kab kec kel ny prof rp sdr sdri st tgl tlp tn yth
        """
    ),
    "ms": _words("bhd dr en hj hjh ir jln kg pn prof sdn tel tn"),
    "sw": _words("bi bw dk dkt dr mh mhe prof uk"),
    "tl": _words("atty bb dr dra engr gen gng gov hon jr kgg mr mrs ms prof rev sen sgt sr sta sto"),
    "el": _words(
        "αγ αρ βλ γρ δηλ δις δρ καθ κα κεφ κκ κλπ κος μέγ ελάχ μτφ οδ παρ πρβλ σελ σημ στρ τηλ τόμ υπ χλμ χιλ"
    ),
    "lo": _words("ດຣ"),
    "th": _words("ดร ผศ รศ ศ นพ พญ นส ดช ดญ บจก บมจ หจก โทร ถ จ อ ต ซ"),
    # Text in Latin letters whose language is not known takes these beside those of English, German, French and Spanish.
    "und": _words(
        """
        atty avv bijv bkz blz bpk bw cfr dhr dkt dott doç dra drs ecc engr esim evt gng godz inkl inż itd jfr jl jln jne
        kl km kts ks mevr mgr mw nr osv pgs płk prof profa sig sigg sigra spett srta ths tlf tp tzn tzw ul uzm vrt yrd
        yth öğr św
        """
    ),
}
"""Abbreviations by language that the library `sentencex` does not know.

Single letters and words with a full stop inside, such as "e.g.", need no entry, because they never end a sentence.
"""

BEFORE_NUMBERS: Mapping[str, frozenset[str]] = {
    "en": _words("art c ch chap ex fig figs lin n no nos p par pp pt s sec sect t tab vol vols z"),
    "de": _words("abb abs art bd gl kap lin nr s tab z ziff"),
    "fr": _words("art cap ch chap fig n no nos p pp t tab vol"),
    "es": _words("art cap fig gl lin n no núm num p par pág págs pp sec t tab vol"),
    "ru": _words("гл илл ок п пп рис с т табл ч"),
    "da": _words("bd fig kap nr s stk tab"),
    "nl": _words("afb art bl blz fig hfst nr p par tab"),
    "sv": _words("bil fig kap nr s sid tab"),
    "no": _words("fig kap nr s tab"),
    "fi": _words("kuva luku nro s taul"),
    "it": _words("art cap fig n nn no p pag pagg pp tab vol"),
    "pt": _words("art cap fig n no p pág págs pp tab vol"),
    "pl": _words("art nr ok pkt poz r rozdz rys s str tab ust"),
    "tr": _words("böl md no s say şek tab"),
    "vi": _words("số tr"),
    "id": _words("bab gb hal hlm no psl tabel"),
    "ms": _words("bab hlm no ms"),
    "sw": _words("na uk"),
    "tl": _words("blg no p pp"),
    "el": _words("αρ αριθ εικ κεφ σ σελ σχ τ"),
    "und": frozenset("§"),
}
"""Words by language that are abbreviations only before a digit: "No. 5", but "No. I will not"."""

ORDINALS = _words("bs cs da de et fi fo hr hu is lb lv no pl sk sl sr tr")
"""Languages that write a full stop behind ordinal numbers: "am 3. Mai"."""

ORDINARY = _words(
    """
    ago an art auto bien con da dis extra fed id ill in km let may me mini miss no o.k ok okay para post pro re sub
    super uni va о.к ок
    """
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
